"""The kernels as torch operators, so that autograd, torch.compile and fake tensors know them."""

from typing import Any

import torch
from torch import Tensor

from attentropy.kernels.autograd import once
from attentropy.kernels.triton.device.views import Written
from attentropy.kernels.triton.plan_backward import Cotangents, Gradients, Needs, plan_backward
from attentropy.kernels.triton.plan_forward import empty_results, plan_forward
from attentropy.kernels.triton.problem import Problem


@torch.library.custom_op("attentropy::triton_forward", mutates_args=())
def triton_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: Tensor,
    lo: Tensor | None,
    hi: Tensor | None,
    mask: Tensor | None,
    bias: Tensor | None,
    relative: Tensor | None,
    slopes: Tensor | None,
    softcap: float,
    dropout: float,
    seed: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Output, entropy, lse, largest logit, argmax, sum p^2 and log l; softcap 0 is none."""
    problem = Problem(
        q=q, k=k, v=v, scale=scale, lo=lo, hi=hi, mask=mask, bias=bias, relative=relative,
        slopes=slopes, softcap=softcap, dropout=dropout, seed=0 if seed is None else int(seed),
    )  # fmt: skip
    launches, written = plan_forward(problem)
    if written.lse.numel():
        for launch in launches:
            launch.start()
    return written


@triton_forward.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, scale: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    return tuple(empty_results(Problem(q=q, k=k, v=v, scale=scale)))


@torch.library.custom_op("attentropy::triton_backward", mutates_args=())
def triton_backward(
    dout: Tensor | None,
    dentropy: Tensor | None,
    dlse: Tensor | None,
    dcollision: Tensor | None,
    out: Tensor,
    entropy: Tensor,
    max_logit: Tensor,
    collision: Tensor,
    log_l: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: Tensor,
    lo: Tensor | None,
    hi: Tensor | None,
    mask: Tensor | None,
    bias: Tensor | None,
    relative: Tensor | None,
    slopes: Tensor | None,
    softcap: float,
    dropout: float,
    seed: Tensor | None,
    needs: list[bool],
) -> list[Tensor]:
    """Gradients of q, k, v, then of scale, bias and relative as far as asked for."""
    problem = Problem(
        q=q, k=k, v=v, scale=scale, lo=lo, hi=hi, mask=mask, bias=bias, relative=relative,
        slopes=slopes, softcap=softcap, dropout=dropout, seed=0 if seed is None else int(seed),
    )  # fmt: skip
    written = Written(out, entropy, log_l, max_logit, log_l, collision, log_l)
    grads = Cotangents(dout, dentropy, dlse, dcollision)
    launches, found = plan_backward(problem, written, grads, Needs(*needs))
    if log_l.numel() or k.numel():
        for launch in launches:
            launch.start()
    return [grad for grad in reduced(problem, found) if grad is not None]


@triton_backward.register_fake
def _(
    dout: Tensor | None, dentropy: Tensor | None, dlse: Tensor | None, dcollision: Tensor | None,
    out: Tensor, entropy: Tensor, max_logit: Tensor, collision: Tensor, log_l: Tensor,
    q: Tensor, k: Tensor, v: Tensor, scale: Tensor, lo: Tensor | None, hi: Tensor | None,
    mask: Tensor | None, bias: Tensor | None, relative: Tensor | None, slopes: Tensor | None,
    softcap: float, dropout: float, seed: Tensor | None, needs: list[bool],
) -> list[Tensor]:  # fmt: skip
    optional = zip((scale, bias, relative), needs, strict=True)
    asked = (q, k, v, *(x for x, need in optional if need and x is not None))
    return [torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in asked]


def reduced(problem: Problem, found: Gradients) -> tuple[Tensor | None, ...]:
    """The gradients in the shape and dtype of their inputs."""
    scale = found.scale
    if scale is not None:
        scale = sum_to(scale, problem.scale)
    bias, relative = found.bias, found.relative
    if bias is not None and problem.bias is not None:
        bias = bias.to(problem.bias.dtype)
    if relative is not None and problem.relative is not None:
        relative = relative.to(problem.relative.dtype)
    return found.q, found.k, found.v, scale, bias, relative


def sum_to(rows: Tensor, like: Tensor) -> Tensor:
    """Sum a [B,H,Q] tensor over the dimensions that `like` broadcasts."""
    if rows.shape == like.shape:
        return rows.clone().to(like.dtype)
    return rows.sum_to_size(like.shape).to(like.dtype).contiguous()


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    out, entropy, _, max_logit, argmax, collision, log_l = output
    *tensors, ctx.softcap, ctx.dropout, seed = inputs
    ctx.save_for_backward(out, entropy, max_logit, collision, log_l, seed, *tensors)
    ctx.mark_non_differentiable(max_logit, argmax, log_l)
    ctx.set_materialize_grads(False)


def _backward(
    ctx: Any, dout: Any, dentropy: Any, dlse: Any, _max: Any, _arg: Any, dcol: Any, _log: Any
) -> Any:
    wanted = ctx.needs_input_grad
    needs = [wanted[3], wanted[7], wanted[8]]
    out, entropy, max_logit, collision, log_l, seed, *tensors = ctx.saved_tensors
    queue = iter(
        triton_backward(
            dout, dentropy, dlse, dcol, out, entropy, max_logit, collision, log_l, *tensors,
            ctx.softcap, ctx.dropout, seed, needs,
        )
    )  # fmt: skip
    dq, dk, dv = next(queue), next(queue), next(queue)
    dscale, dbias, drelative = (next(queue) if need else None for need in needs)
    anchors = (*ctx.saved_tensors, dout, dentropy, dlse, dcol)
    found = once("triton", dq, dk, dv, dscale, dbias, drelative, anchors=anchors)
    return *found[:4], None, None, None, *found[4:], None, None, None, None


triton_forward.register_autograd(_backward, setup_context=_keep)
