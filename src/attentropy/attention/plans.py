"""Calls that are resolved once: the next call of the same kind goes straight to the kernel.

A kind is the shapes, strides and dtypes of plain tensors on the CPU, with options that are values:
numbers, and masks and scales that hold no tensor. Checks, masks, scales and the choice of a kernel
depend on nothing else.

    >>> from attentropy.core.resolve import resolve
    >>> q = torch.ones(1, 1, 4, 3)
    >>> kind = kind_of(q, q, q, Options(mask=causal), "auto")
    >>> find(kind) is None
    True
    >>> note(kind, resolve(q, q, q, Options(mask=causal)), "auto")
    >>> find(kind).attend(q, q, q).stats.perplexity.round(decimals=4)
    tensor([[[1., 2., 3., 4.]]])
"""

from collections.abc import Hashable

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter

from attentropy.attention.choice import choose
from attentropy.core import scales
from attentropy.core.call import Call
from attentropy.core.masks import causal
from attentropy.core.masks.mask import Mask
from attentropy.core.resolve import Options
from attentropy.core.scores import Dot
from attentropy.core.weights import Softmax
from attentropy.kernels.fused import kernel as fused
from attentropy.kernels.fused.plan import CallPlan

Kind = tuple[Hashable, ...]
_MOST = 256
_PLANS: dict[Kind, CallPlan | None] = {}  # None: a kind that no plan serves
_RULES: tuple[type, ...] = (
    *(scales.InverseSqrt, scales.Constant, scales.Temperature, scales.LogLength),
    *(scales.LogLengthFrom, scales.Mixed, scales.PowerLength, scales.HoldEntropy),
)


def kind_of(q: Tensor, k: Tensor, v: Tensor, options: Options, kernel: str) -> Kind | None:
    """What calls that share a plan have in common; None for a call that has to be resolved.

    Args:
        q: queries.
        k: keys.
        v: values.
        options: those of attend().
        kernel: as in attend().
    """
    mask, score, scale, weights, bias, softcap, sink, dropout, stats = options
    if bias is not None or sink is not None or type(dropout) is not float or dropout:
        return None
    if not (score is None or type(score) is Dot) or not (
        weights is None or type(weights) is Softmax
    ):
        return None
    if type(stats) is not str or not (softcap is None or type(softcap) is float):
        return None
    if not (scale is None or type(scale) is float or type(scale) in _RULES):
        return None
    shown = None if mask is None else _value(mask)
    if (mask is not None and shown is None) or not _in_memory(q, k, v):
        return None
    return (
        *(q.shape, k.shape, v.shape, q.stride(), k.stride(), v.stride()),
        *(q.dtype, k.dtype, v.dtype, shown, scale, softcap, stats, kernel),
    )


def find(kind: Kind | None) -> CallPlan | None:
    """The plan of a kind, if there is one.

    Args:
        kind: what `kind_of` gave.
    """
    return None if kind is None else _PLANS.get(kind)


def note(kind: Kind | None, call: Call, kernel: str) -> None:
    """Make the plan of a kind, unless this was tried before.

    Args:
        kind: what `kind_of` gave for the call.
        call: a resolved call of this kind, which the kernel has served.
        kernel: as in attend().
    """
    if kind is None or kind in _PLANS:
        return
    if len(_PLANS) >= _MOST:
        _PLANS.clear()
    call, chosen = choose(call, kernel)
    empty = not all(x.numel() for x in call[:3])
    # tensors of inference mode could not be used outside it later
    with torch.inference_mode(False), torch.no_grad():
        _PLANS[kind] = None if empty or chosen is not fused else CallPlan.of(_kept(call))


def _kept(call: Call) -> Call:
    """The call with tensors of its own, which no caller can write to."""
    seen = call.seen.with_visible()
    lo, hi, table, counted = (
        None if x is None else x.clone() for x in (seen.lo, seen.hi, seen.table, seen.counted)
    )
    seen = seen._replace(lo=lo, hi=hi, table=table, counted=counted)
    return call._replace(scale=call.scale.clone(), seen=seen)


def _value(mask: object) -> Hashable | None:
    """A mask as a value that equals that of the same mask made again; None if it holds a tensor."""
    if mask is causal:
        return "causal"
    if type(mask) is not Mask or mask.made is None or isinstance(mask.made, str):
        return mask.made if type(mask) is Mask else None
    function, arguments = mask.made
    parts = [x if type(x) is int else _value(x) for x in arguments]
    return None if None in parts else (function, *parts)


def _in_memory(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether these are dense tensors of this process that nothing records, casts or transforms."""
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
        return False
    if torch._C._are_functorch_transforms_active() or torch.is_autocast_enabled("cpu"):
        return False
    if torch.is_grad_enabled() and torch._C._autograd._top_saved_tensors_default_hooks(True):
        return False  # checkpointing: a recomputation has to save what the first call saved
    if forward_ad._current_level >= 0:
        return False
    return _is_plain(q) and _is_plain(k) and _is_plain(v)


def _is_plain(x: Tensor) -> bool:
    return (
        (type(x) is Tensor or type(x) is Parameter)
        and x.is_cpu
        and x.layout is torch.strided
        and not x.is_neg()
    )
