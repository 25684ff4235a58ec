"""The streaming kernels as torch operators, so that torch.compile takes a call as one node.

In eager mode kernels are called directly. While compiling, a mask is given as intervals or as a
table, weights as text, and everything else as tensors.
"""

from typing import Any

import torch
from torch import Tensor

from attentropy.core.call import Call
from attentropy.core.errors import UnsupportedError
from attentropy.core.masks import Extent
from attentropy.core.visibility import Visibility
from attentropy.core.weights import (
    L1,
    L2,
    Decay,
    Gumbel,
    Hard,
    Kernelised,
    Linear,
    ReluSquared,
    Softmax,
    Weights,
)
from attentropy.kernels.tiled import softmax as streaming
from attentropy.kernels.tiled import sums as elementwise

Maybe = Tensor | None
_INNER: dict[str, Linear | ReluSquared] = {"Linear": Linear(), "ReluSquared": ReluSquared()}


def encode(weights: Weights) -> str:
    """Weights as text, without what acts outside the operator."""
    match weights:
        case Gumbel():
            return f"Gumbel {weights.tau}"
        case L1() | L2():
            return f"{type(weights).__name__} {type(weights.of).__name__}"
        case Decay():
            if isinstance(weights.rate, Tensor):
                raise UnsupportedError(
                    "torch.compile of Decay with a tensor of rates is supported for full and "
                    "causal masks only"
                )
            return f"Decay {weights.rate}"
        case _:
            return type(weights).__name__


def decode(text: str) -> Weights:
    """The inverse of `encode`; Hard and Kernelised come back as what sums like them."""
    name, *rest = text.split()
    match name:
        case "Gumbel":
            return Gumbel(float(rest[0]))
        case "L1":
            return L1(_INNER[rest[0]])
        case "L2":
            return L2(_INNER[rest[0]])
        case "Decay":
            return Decay(float(rest[0]))
        case "Linear" | "ReluSquared":
            return _INNER[name]
        case _:
            return {"Softmax": Softmax, "Hard": Hard, "Kernelised": Kernelised}[name]()


def arguments(call: Call) -> tuple[Any, ...]:
    """The fields of a call in the order of the operators' arguments."""
    return (
        call.q, call.k, call.v, call.scale, call.bias, call.relative, call.additive,
        call.visible, call.seen.lo, call.seen.hi, call.seen.table, call.slopes, call.seed,
        call.softcap, call.dropout, encode(call.weights),
    )  # fmt: skip


_NAMES = (
    "q", "k", "v", "scale", "bias", "relative", "additive", "visible", "lo", "hi", "mask",
    "slopes", "seed", "softcap", "dropout",
)  # fmt: skip


def _call(arguments: tuple[Any, ...]) -> Call:
    fields = dict(zip(_NAMES, arguments, strict=False))
    visible, lo, hi, table = (fields.pop(name) for name in ("visible", "lo", "hi", "mask"))
    bias, (batch, heads, queries, _) = fields["bias"], fields["q"].shape
    extent = Extent(batch, heads, queries, fields["k"].shape[2], fields["q"].device)
    seen = Visibility(extent, lo, hi, table, added=bias, counted=visible)
    return Call(weights=decode(arguments[len(_NAMES)]), seen=seen, **fields)


def _statistics(q: Tensor) -> Tensor:
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    return q.new_empty(q.shape[:3], dtype=wide)


def _contiguous(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(x.contiguous() for x in tensors)


@torch.library.custom_op("attentropy::softmax", mutates_args=())
def softmax_op(
    q: Tensor, k: Tensor, v: Tensor, scale: Tensor, bias: Maybe, relative: Maybe, additive: Maybe,
    visible: Tensor, lo: Maybe, hi: Maybe, mask: Maybe, slopes: Maybe, seed: Maybe,
    softcap: float | None, dropout: float, weights: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """streaming.forward."""
    arguments = (
        q, k, v, scale, bias, relative, additive, visible, lo, hi, mask, slopes, seed,
        softcap, dropout, weights,
    )  # fmt: skip
    return _contiguous(streaming.forward(_call(arguments)))  # type: ignore[return-value]


@softmax_op.register_fake
def _softmax_fake(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Any:
    out = v.new_empty(*q.shape[:3], v.shape[-1])
    entropy, lse, m, collision, log_l = (_statistics(q) for _ in range(5))
    argmax = q.new_empty(q.shape[:3], dtype=torch.int64)
    return out, entropy, lse, m, argmax, collision, log_l


@torch.library.custom_op("attentropy::sums", mutates_args=())
def sums_op(
    q: Tensor, k: Tensor, v: Tensor, scale: Tensor, bias: Maybe, relative: Maybe, additive: Maybe,
    visible: Tensor, lo: Maybe, hi: Maybe, mask: Maybe, slopes: Maybe, seed: Maybe,
    softcap: float | None, dropout: float, weights: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """elementwise.forward."""
    arguments = (
        q, k, v, scale, bias, relative, additive, visible, lo, hi, mask, slopes, seed,
        softcap, dropout, weights,
    )  # fmt: skip
    return _contiguous(elementwise.forward(_call(arguments)))  # type: ignore[return-value]


@sums_op.register_fake
def _sums_fake(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Any:
    wide = _statistics(q).dtype
    o = v.new_empty(*q.shape[:3], v.shape[-1], dtype=wide)
    n1, n2, m = (_statistics(q) for _ in range(3))
    return o, n1, n2, m, q.new_empty(q.shape[:3], dtype=torch.int64)


@torch.library.custom_op("attentropy::backward", mutates_args=())
def backward_op(
    q: Tensor, k: Tensor, v: Tensor, scale: Tensor, bias: Maybe, relative: Maybe, additive: Maybe,
    visible: Tensor, lo: Maybe, hi: Maybe, mask: Maybe, slopes: Maybe, seed: Maybe,
    softcap: float | None, dropout: float, weights: str,
    results: list[Tensor], grads: list[Tensor], present: list[bool], needs: list[bool],
) -> list[Tensor]:  # fmt: skip
    """Gradients of the inputs that need one; `results` is empty for sums."""
    arguments = (
        q, k, v, scale, bias, relative, additive, visible, lo, hi, mask, slopes, seed,
        softcap, dropout, weights,
    )  # fmt: skip
    call, held = _call(arguments), iter(grads)
    flowing = tuple(next(held) if here else None for here in present)
    wanted = dict(zip(streaming.INPUTS, needs, strict=True))
    if results:
        found = streaming.backward(call, tuple(results), flowing, wanted)
    else:
        found = elementwise.backward(call, flowing, wanted)
    return [x.contiguous() for x in found if x is not None]


@backward_op.register_fake
def _backward_fake(*arguments: Any) -> list[Tensor]:
    inputs, needs = arguments[: len(streaming.INPUTS)], arguments[-1]
    return [x.new_empty(x.shape) for x, need in zip(inputs, needs, strict=True) if need]


def _save_softmax(ctx: Any, inputs: Any, output: Any) -> None:
    out, entropy, _, m, argmax, collision, log_l = output
    _save(ctx, inputs, [out, entropy, m, collision, log_l])
    ctx.mark_non_differentiable(m, argmax, log_l)


def _save_sums(ctx: Any, inputs: Any, output: Any) -> None:
    _save(ctx, inputs, [])
    ctx.mark_non_differentiable(*output[3:])


def _save(ctx: Any, inputs: Any, results: list[Tensor]) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[:13], *results)
    ctx.plain = inputs[13:]


def _backward_softmax(ctx: Any, *grads: Maybe) -> Any:
    d_out, d_entropy, d_lse, _, _, d_collision, _ = grads
    return _backward(ctx, (d_out, d_entropy, d_lse, d_collision))


def _backward_sums(ctx: Any, *grads: Maybe) -> Any:
    return _backward(ctx, grads[:3])


def _backward(ctx: Any, grads: tuple[Maybe, ...]) -> Any:
    inputs, results = ctx.saved_tensors[:13], list(ctx.saved_tensors[13:])
    count = len(streaming.INPUTS)
    needs = [bool(x) for x in ctx.needs_input_grad[:count]]
    present = [g is not None for g in grads]
    held = [g for g in grads if g is not None]
    found = iter(backward_op(*inputs, *ctx.plain, results, held, present, needs))
    return *(next(found) if need else None for need in needs), *(None,) * 9


softmax_op.register_autograd(_backward_softmax, setup_context=_save_softmax)
sums_op.register_autograd(_backward_sums, setup_context=_save_sums)


def softmax(call: Call) -> tuple[Tensor, ...]:
    """streaming.forward as one differentiable operator."""
    results: tuple[Tensor, ...] = softmax_op(*arguments(call))
    return results


def sums(call: Call) -> tuple[Tensor, ...]:
    """elementwise.forward as one differentiable operator."""
    results: tuple[Tensor, ...] = sums_op(*arguments(call))
    return results
