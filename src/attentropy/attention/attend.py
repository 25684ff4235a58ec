"""attend(): validate, choose a kernel, run it. The only way to compute attention here.

>>> import torch, attentropy as at
>>> q, k, v = (torch.ones(1, 1, 4, 8) for _ in range(3))
>>> out, stats = at.attend(q, k, v, mask=at.causal)
>>> stats.perplexity.round(decimals=4)
tensor([[[1., 2., 3., 4.]]])
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad

from attentropy.core.call import Call, Rows, replace_tensors
from attentropy.core.errors import ArgumentError, UnsupportedError
from attentropy.core.masks import Mask
from attentropy.core.resolve import SMALL_MASK, Options, check_tensors, resolve
from attentropy.core.results import Attended
from attentropy.core.scales import ScaleRule
from attentropy.core.scores import ALiBi, Relative, Score
from attentropy.core.weights import Weights
from attentropy.kernels import linear, reference
from attentropy.kernels.attended import attended
from attentropy.kernels.fused import kernel as fused
from attentropy.kernels.key_mass import received
from attentropy.kernels.tiled import softmax as streaming
from attentropy.kernels.triton import kernel as triton

# in the order in which "auto" asks them
KERNELS: dict[str, ModuleType] = {
    "linear": linear,
    "triton": triton,
    "fused": fused,
    "streaming": streaming,
    "reference": reference,
}
_OFF_GPU = (*(name for name in KERNELS if name != "triton"), "triton")


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Mask | Tensor | Callable[..., Tensor] | None = None,
    score: Score | None = None,
    scale: ScaleRule | float | Tensor | None = None,
    weights: Weights | None = None,
    bias: Tensor | Relative | ALiBi | None = None,
    softcap: float | None = None,
    sink: Tensor | None = None,
    dropout: float = 0.0,
    kernel: str = "auto",
) -> Attended:
    """sum_j w_ij v_j with w = weights(softcap(scale * score(q, k)) + bias), masked; and statistics.

    Args:
        q: queries [B,H,Q,D].
        k: keys [B,Hk,K,D]; Hk divides H.
        v: values [B,Hk,K,Dv].
        mask: a Mask, a function (b, h, q, k) -> bool, or a tensor that broadcasts to
            [B,H,Q,K] (bool: True may attend; float: added, and -inf hides the key).
        score: Dot(), Cosine() or Additive(...). Dot() if not given.
        scale: a rule, a number, or a tensor [H] or broadcastable to [B,H,Q]; the score's own
            default if not given.
        weights: Softmax() if not given; see attentropy.core.weights.
        bias: a tensor that broadcasts to [B,H,Q,K], Relative(table) or ALiBi().
        softcap: c in c * tanh(s / c), applied before the bias.
        sink: [H], the logit of one more outcome, which has no value.
        dropout: the share of weights dropped, after the statistics are taken.
        kernel: "auto" takes the fastest that serves the call; a kernel asked for by name is
            never replaced by another.

    Returns:
        Attended(out [B,H,Q,Dv], stats), with gradients through out and statistics.
    """
    options = Options(
        mask=mask,
        score=score,
        scale=scale,
        weights=weights,
        bias=bias,
        softcap=softcap,
        sink=sink,
        dropout=dropout,
    )
    q, k, options = steered(q, k, options)
    call = resolve(q, k, v, options)
    if Observer.call is None:
        return attended(call, run(call, kernel))
    return Observer.call(call, lambda: attended(call, run(call, kernel)))


Change = Callable[[Tensor, Tensor, Options], tuple[Tensor, Tensor, Options]]


class Observer:
    """What calls go through while models are watched or steered, set by attentropy.models.

    `change` gives other queries, keys and options; `call` computes and records a resolved call;
    `unseen` computes what is not recorded, and is told by what.
    """

    call: ClassVar[Callable[[Call, Callable[[], Attended]], Attended] | None] = None
    change: ClassVar[Change | None] = None
    unseen: ClassVar[Callable[[str, Callable[[], Attended]], Attended] | None] = None


def steered(q: Tensor, k: Tensor, options: Options) -> tuple[Tensor, Tensor, Options]:
    """Queries, keys and options as the running module is steered to have them."""
    return (q, k, options) if Observer.change is None else Observer.change(q, k, options)


def unseen(what: str, computing: Callable[[], Attended]) -> Attended:
    """Compute, and tell whoever watches the running module that `what` is not recorded."""
    return computing() if Observer.unseen is None else Observer.unseen(what, computing)


def compute(q: Tensor, k: Tensor, v: Tensor, options: Options, kernel: str = "auto") -> Attended:
    """attend() as it is, neither steered nor watched: for what is made of several calls."""
    call = resolve(q, k, v, options)
    return attended(call, run(call, kernel))


def run(call: Call, kernel: str) -> Rows:
    """The rows of a resolved call by the kernel asked for, without its sink."""
    call, chosen = choose(call, kernel)
    if _is_empty(call) or call.q.is_meta:
        return _blind(call)
    if call.q.shape[3] and call.v.shape[3]:
        rows: Rows = chosen.attend(call)
        return rows
    rows = chosen.attend(_widened(call))
    return rows._replace(out=rows.out[..., : call.v.shape[3]])


def _is_empty(call: Call) -> bool:
    batch, heads, queries, _ = call.q.shape
    return not batch * heads * queries * call.k.shape[2]


def _widened(call: Call) -> Call:
    """Tensors without a width, for kernels that need one: a column of zeros changes no score."""
    narrow = [name for name in ("q", "k", "v") if not getattr(call, name).shape[3]]
    columns: dict[str, Tensor | None] = {n: F.pad(getattr(call, n), (0, 1)) for n in narrow}
    return replace_tensors(call, columns)


def explain(
    q: Tensor, k: Tensor, v: Tensor, *, kernel: str = "auto", **options: Any
) -> "Explanation":
    """Which kernel attend() would take with these arguments, and why not the others.

    >>> q = torch.ones(1, 1, 4, 8)
    >>> explain(q, q, q, dropout=0.5).kernel
    'streaming'
    """
    call = resolve(q, k, v, options_of(options))
    lacking = {name: _lacks(name, call) for name in KERNELS}
    chosen = _name_of(call, kernel)
    return Explanation(chosen, lacking)


def key_mass(q: Tensor, k: Tensor, *, kernel: str = "auto", **options: Any) -> Tensor:
    """sum_i w_ij, the attention that each key receives, [B,H,K], in O(n) memory.

    Options are those of attend(). It is the gradient of sum_i out_i with respect to values of
    width one, so every kernel gives it.

    >>> q = torch.ones(1, 1, 2, 8)
    >>> key_mass(q, q, mask=lambda b, h, q, k: k <= q)
    tensor([[[1.5000, 0.5000]]])
    """
    check_tensors(q, k, k)
    with torch.autocast(q.device.type, enabled=False):
        compiling = torch.compiler.is_compiling()
        mass = (_mass_recorded if compiling else _mass)(q, k, kernel, options)
    mass = mass[:, : q.shape[1], :, 0]
    return mass if mass.dtype == torch.float64 else mass.float()


def _mass(q: Tensor, k: Tensor, kernel: str, options: dict[str, Any]) -> Tensor:
    with torch.inference_mode(False), torch.enable_grad():
        given = {name: _saveable(x) for name, x in options.items()}
        call = _mass_call(_saveable(q), _saveable(k), given)
        call = call._replace(v=call.v.requires_grad_())
        out, _ = attended(call, run(call, kernel))
        return torch.autograd.grad(out.sum(), call.v)[0]


def _mass_recorded(q: Tensor, k: Tensor, kernel: str, options: dict[str, Any]) -> Tensor:
    """The same under torch.compile."""
    with torch.no_grad():
        call, chosen = choose(_mass_call(q, k, options), kernel)
        if _is_empty(call):
            return torch.zeros_like(call.v)
        return received(_widened(call), chosen).detach()


def _mass_call(q: Tensor, k: Tensor, options: dict[str, Any]) -> Call:
    """attend() with keys of their own for every query head, and ones of width one as values."""
    k = k.repeat_interleave(max(1, q.shape[1] // k.shape[1]), 1)
    q, k, wanted = steered(q, k, options_of(options))
    return resolve(q, k, k.new_ones(*k.shape[:3], 1), wanted)


def _saveable(x: Any) -> Any:
    """Constants; of inference tensors, which a gradient cannot save, copies."""
    if not isinstance(x, Tensor):
        return x
    return x.clone() if x.is_inference() else x.detach()


@dataclass(frozen=True)
class Explanation:
    """The kernel that serves a call, and for every kernel what it lacks (None: nothing)."""

    kernel: str
    lacking: dict[str, str | None]

    def __str__(self) -> str:
        lines = [f"{self.kernel} serves this call."]
        for name, reason in self.lacking.items():
            if name != self.kernel:
                lines.append(
                    f"  {name}: {'could serve it too' if reason is None else 'lacks ' + reason}"
                )
        return "\n".join(lines)


def options_of(options: dict[str, Any]) -> Options:
    """The options of attend() out of its keywords; raises on one that it does not have."""
    known = Options._fields
    for name in options:
        if name not in known:
            raise ArgumentError("option", f"one of {sorted(known)}", repr(name))
    return Options(**options)


def _lacks(name: str, call: Call) -> str | None:
    reason: str | None = KERNELS[name].lacks(call)
    return reason


def _name_of(call: Call, kernel: str) -> str:
    check_name(kernel)
    if kernel != "auto":
        return kernel
    return next(name for name in _in_order(call) if _lacks(name, call) is None)


def _in_order(call: Call) -> tuple[str, ...]:
    """Kernels as "auto" asks them. Off the GPU, Triton is an interpreter: it comes last."""
    return tuple(KERNELS) if call.q.is_cuda else _OFF_GPU


def check_name(kernel: str) -> None:
    """Raise unless it is the name of a kernel, or "auto"."""
    if kernel != "auto" and kernel not in KERNELS:
        raise ArgumentError("kernel", f"'auto' or one of {sorted(KERNELS)}", repr(kernel))


def choose(call: Call, kernel: str) -> tuple[Call, ModuleType]:
    """The call as the kernel asked for takes it, and the kernel; raises if it lacks something."""
    if kernel not in ("streaming", "reference"):
        call = _materialised(call)
    name = _name_of(call, kernel)
    _refuse_transforms(name, call)
    reason = None if kernel == "auto" else _lacks(name, call)
    if reason is not None:
        able = [other for other in KERNELS if _lacks(other, call) is None]
        raise UnsupportedError(
            f"kernel={name!r} does not support {reason}; kernels that serve this call: {able}"
        )
    return call, KERNELS[name]


def _materialised(call: Call) -> Call:
    """A small predicate becomes a table, which more kernels take."""
    seen = call.seen
    if seen.predicate is None or math.prod(seen.extent[:4]) > SMALL_MASK:
        return call
    table = seen._replace(added=None).dense()
    whole = seen._replace(table=table, predicate=None, lo=None, hi=None)
    return call._replace(seen=whole)


def _refuse_transforms(name: str, call: Call) -> None:
    if name == "reference" or torch.compiler.is_compiling():
        return
    # tangents of forward-mode derivatives would be lost without a word
    dual = forward_ad._current_level >= 0 and name != "linear"
    if dual and any(forward_ad.unpack_dual(x).tangent is not None for x in call[:4]):
        raise UnsupportedError(
            f"forward-mode derivatives are not supported by the {name} kernel; "
            "kernel='reference' supports them, in O(n^2) memory"
        )
    if torch._C._are_functorch_transforms_active():
        raise UnsupportedError(
            f"torch.func transforms (vmap, grad, jvp) are not supported by the {name} kernel; "
            "add a batch dimension instead of vmap, or use kernel='reference'"
        )


def _blind(call: Call) -> Rows:
    """Rows without keys: zeros that are connected to the inputs, so that gradients are zero."""
    batch, heads, queries, _ = call.q.shape
    rows = (batch, heads, queries)
    wide = torch.float64 if call.q.dtype == torch.float64 else torch.float32
    nothing = sum(x[..., :0].sum() for x in (call.q, call.k, call.v))
    zero = torch.zeros(rows, dtype=wide, device=call.q.device) + nothing
    out = call.v.new_zeros(*rows, call.v.shape[-1]) + nothing
    none = torch.full(rows, -1, dtype=torch.int64, device=call.q.device)
    floor = torch.full_like(zero, -torch.inf)
    if call.weights.probabilities:
        return Rows(out, zero, zero - torch.inf, floor, none, zero)
    return Rows(out, None, None, floor, none, zero, zero)
