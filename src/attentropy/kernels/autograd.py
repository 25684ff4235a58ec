"""Pieces of autograd that kernels share."""

from typing import Any

import torch
from torch import Tensor

from attentropy.errors import UnsupportedError


class _Once(torch.autograd.Function):
    """The identity, whose own derivative is refused."""

    @staticmethod
    def forward(ctx: Any, kernel: str, x: Tensor) -> Tensor:
        ctx.kernel = kernel
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise UnsupportedError(
            f"double backward is not supported by the {ctx.kernel} kernel; "
            "kernel='reference' supports it, in O(n^2) memory"
        )


def once(kernel: str, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    """Gradients as they are, which raise a clear error if differentiated again."""
    if not torch.is_grad_enabled():
        return grads
    return tuple(
        g if g is None else _Once.apply(kernel, g.detach().requires_grad_()) for g in grads
    )
