"""Pieces of autograd that kernels share."""

from typing import Any

import torch
from torch import Tensor

from attentropy.core.errors import UnsupportedError


class _Once(torch.autograd.Function):
    """The identity of x, whose own derivative is refused, by x and by what x was made from."""

    @staticmethod
    def forward(ctx: Any, kernel: str, x: Tensor, *anchors: Tensor) -> Tensor:
        ctx.kernel = kernel
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise UnsupportedError(
            f"double backward is not supported by the {ctx.kernel} kernel; "
            "kernel='reference' supports it, in O(n^2) memory"
        )


def once(
    kernel: str, *grads: Tensor | None, anchors: tuple[Tensor | None, ...] = ()
) -> tuple[Tensor | None, ...]:
    """Gradients as they are, which raise a clear error if differentiated again.

    `anchors` are the tensors they were made from. Without them, autograd.grad with respect to one
    of these would find no path, and give None or a message about unused tensors.

    Args:
        kernel: its name, for the message.
        grads: gradients; None stays None.
        anchors: tensors that the gradients were made from.
    """
    if not torch.is_grad_enabled():
        return grads
    made_from = [x for x in anchors if x is not None and x.requires_grad]
    return tuple(
        g if g is None else _Once.apply(kernel, g.detach().requires_grad_(), *made_from)
        for g in grads
    )


def unbatched(kernel: str, *grads: Tensor | None) -> None:
    """Raise inside a backward pass that is vmapped over gradients.

    Args:
        kernel: its name, for the message.
        grads: gradients that a backward pass was given.
    """
    try:
        for g in grads:
            if g is not None:
                g.data_ptr()
    except RuntimeError:
        raise UnsupportedError(
            "batched gradients (is_grads_batched, jacobian with vectorize=True) are not supported "
            f"by the {kernel} kernel; kernel='reference' supports them, in O(n^2) memory"
        ) from None


class _Weighted(torch.autograd.Function):
    """weights @ v for finite numbers, whose gradient is kept from hidden keys even if it is NaN."""

    generate_vmap_rule = True

    @staticmethod
    def forward(weights: Tensor, v: Tensor, hidden: Tensor) -> Tensor:
        return weights @ v

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def jvp(ctx: Any, dw: Tensor, dv: Tensor, _: Tensor) -> Tensor:
        weights, v, _ = ctx.saved_tensors
        return dw @ v + weights @ dv

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (grad,) = grads
        weights, v, hidden = ctx.saved_tensors
        if bool(grad.detach().isfinite().all()):
            return grad @ v.mT, weights.mT @ grad, None
        shown = grad[:, :, :, None].masked_fill(hidden[..., None], 0.0)
        return (shown * v[:, :, None]).sum(-1), (weights[..., None] * shown).sum(2), None


def mixed(weights: Tensor, v: Tensor, hidden: Tensor) -> Tensor:
    """weights @ v; a NaN in the gradient of a row stays with the keys of that row.

    Args:
        weights: finite, [B,H,Q,K].
        v: finite, [B,H,K,Dv].
        hidden: bool [B,H,Q,K], True where a key is hidden.
    """
    found: Tensor = _Weighted.apply(weights, v, hidden)
    return found


class _Lower(torch.autograd.Function):
    """weights @ v for finite v, whose gradient of v leaves out what is not finite."""

    generate_vmap_rule = True

    @staticmethod
    def forward(weights: Tensor, v: Tensor) -> Tensor:
        return weights @ v

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def jvp(ctx: Any, dw: Tensor, dv: Tensor) -> Tensor:
        weights, v = ctx.saved_tensors
        return dw @ v + weights @ dv

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (grad,) = grads
        weights, v = ctx.saved_tensors
        d_weights = (grad @ v.mT).sum_to_size(weights.shape)
        return d_weights, (weights.mT @ grad.nan_to_num(0.0, 0.0, 0.0)).sum_to_size(v.shape)


def lower_product(weights: Tensor, v: Tensor) -> Tensor:
    """weights @ v for lower triangular weights; NaN stays with the rows that see it.

    A plain product has 0 * NaN above the diagonal: a NaN in v would reach rows before it, and a NaN
    in the gradient of a row would reach values after it. It does so under torch.compile, which does
    not trace functions that have forward-mode derivatives.

    Args:
        weights: [...,N,N], zero above the diagonal.
        v: [...,N,D].
    """
    finite = v.isfinite()
    seen = torch.where(finite, v * 0, v.detach()).cumsum(-2)  # its gradient is 0, or NaN
    finite_v = v.masked_fill(~finite, 0.0)
    if torch.compiler.is_compiling():
        return weights @ finite_v + seen
    found: Tensor = _Lower.apply(weights, finite_v)
    return found + seen
