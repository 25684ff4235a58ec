"""The fused kernel as torch operators, so that torch.compile takes a call as one node."""

from typing import Any

import torch
from torch import Tensor

from attentropy.kernels.autograd import once
from attentropy.kernels.fused.kernel import Inputs, Results, backward, forward

Maybe = Tensor | None
_DIFFERENTIABLE = 6  # the first inputs, up to `relative`


@torch.library.custom_op("attentropy::fused", mutates_args=())
def fused(
    q: Tensor, k: Tensor, v: Tensor, scale: Tensor, bias: Maybe, relative: Maybe,
    lo: Maybe, hi: Maybe, mask: Maybe, slopes: Maybe, softcap: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """`forward` of the fused kernel, its output contiguous."""
    inputs = Inputs(q, k, v, scale, bias, relative, lo, hi, mask, slopes, softcap)
    results = forward(inputs)
    return tuple(results._replace(out=results.out.contiguous()))  # type: ignore[return-value]


@fused.register_fake
def _fused_fake(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Any:
    out = v.new_empty(*q.shape[:3], v.shape[-1])
    entropy, lse, top, collision, shift = (
        q.new_empty(q.shape[:3], dtype=torch.float32) for _ in range(5)
    )
    argmax = q.new_empty(q.shape[:3], dtype=torch.int64)
    return out, entropy, lse, top, argmax, collision, shift


@torch.library.custom_op("attentropy::fused_backward", mutates_args=())
def fused_backward(
    q: Tensor, k: Tensor, v: Tensor, scale: Tensor, bias: Maybe, relative: Maybe,
    lo: Maybe, hi: Maybe, mask: Maybe, slopes: Maybe, softcap: float,
    results: list[Tensor], grads: list[Tensor], present: list[bool], needs: list[bool],
) -> list[Tensor]:  # fmt: skip
    """Gradients of the inputs that need one; `grads` holds those that are `present`."""
    inputs = Inputs(q, k, v, scale, bias, relative, lo, hi, mask, slopes, softcap)
    held = iter(grads)
    flowing = tuple(next(held) if here else None for here in present)
    found = backward(inputs, Results(*results), flowing, tuple(needs))
    return [x.contiguous() for x in found if x is not None]


@fused_backward.register_fake
def _backward_fake(*arguments: Any) -> list[Tensor]:
    needs = arguments[-1]
    pairs = zip(arguments[:_DIFFERENTIABLE], needs, strict=True)
    return [x.new_empty(x.shape) for x, need in pairs if need]


def _save(ctx: Any, inputs: Any, output: Any) -> None:
    *tensors, ctx.softcap = inputs
    ctx.save_for_backward(*tensors, *output)
    ctx.mark_non_differentiable(output[3], output[4], output[6])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, *grads: Tensor | None) -> Any:
    saved = ctx.saved_tensors
    inputs, results = saved[:-7], saved[-7:]
    needs = list(ctx.needs_input_grad[:_DIFFERENTIABLE])
    present = [g is not None for g in grads]
    held = [g for g in grads if g is not None]
    found = iter(fused_backward(*inputs, ctx.softcap, list(results), held, present, needs))
    spread = [next(found) if need else None for need in needs]
    refused = once("fused", *spread, anchors=(*saved, *grads))
    return *refused, *[None] * (len(inputs) + 1 - _DIFFERENTIABLE)


torch.library.register_autograd("attentropy::fused", _backward, setup_context=_save)
