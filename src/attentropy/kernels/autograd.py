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
    """Raise inside of a backward pass that is vmapped over gradients.

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
