"""Scales that are trained: rules of attend() with a parameter for each head.

Any scale rule may be the base of LearnedScale; both are differentiable through attend().
"""

import math

import torch
from torch import Tensor, nn

from attentropy.core.errors import ArgumentError, ArgumentTypeError
from attentropy.core.scales import InverseSqrt, ScaleRule
from attentropy.nn._checks import count, number


class LearnedScale(nn.Module):
    """e^g_h * base(d, n): one learned factor for each head, 1 at first.

    The state dict has `log_gain` [H]. `limit` bounds the whole scale, as contrastive models do
    (100 there).

    Args:
        num_heads: H.
        base: a scale rule; InverseSqrt() if not given.
        limit: the largest scale; positive.
    """

    def __init__(
        self, num_heads: int, *, base: ScaleRule | None = None, limit: float | None = None
    ) -> None:
        super().__init__()
        count("LearnedScale: num_heads", num_heads)
        if base is not None and not callable(base):
            raise ArgumentTypeError("LearnedScale: base", "a scale rule", repr(base))
        self.base = InverseSqrt() if base is None else base
        self.limit = None if limit is None else number("LearnedScale: limit", limit, above=0.0)
        self.log_gain = nn.Parameter(torch.zeros(num_heads))

    def forward(self, head_dim: int, visible: Tensor) -> Tensor:
        """The scale, broadcastable to [B,H,Q].

        Args:
            head_dim: D.
            visible: visible keys of each row, broadcastable to [B,H,Q].
        """
        scale = self.base(head_dim, visible) * _heads(self.log_gain.exp(), visible)
        return scale if self.limit is None else scale.clamp(max=self.limit)

    def extra_repr(self) -> str:
        """Heads and base."""
        return f"num_heads={len(self.log_gain)}, base={self.base}, limit={self.limit}"


class SSMax(nn.Module):
    """(s_h * log n + b_h) / sqrt(d), n the visible keys: scalable softmax, learned for each head.

    Starts at s = 1/log(reference), b = 0, which is 1/sqrt(d) for rows of `reference` keys. State
    dict: `slope` and `offset`, each [H].

    Args:
        num_heads: H.
        reference: number of keys at which it starts as 1/sqrt(d); at least 2.
    """

    def __init__(self, num_heads: int, *, reference: int = 1024) -> None:
        super().__init__()
        count("SSMax: num_heads", num_heads)
        count("SSMax: reference", reference, least=2)
        self.slope = nn.Parameter(torch.full((num_heads,), 1 / math.log(reference)))
        self.offset = nn.Parameter(torch.zeros(num_heads))

    def forward(self, head_dim: int, visible: Tensor) -> Tensor:
        """The scale, broadcastable to [B,H,Q].

        Args:
            head_dim: D.
            visible: visible keys of each row, broadcastable to [B,H,Q].
        """
        log_n = visible.clamp(min=1).to(self.slope.dtype).log()
        slope, offset = (_heads(x, visible) for x in (self.slope, self.offset))
        return (slope * log_n + offset) * head_dim**-0.5

    def extra_repr(self) -> str:
        """Heads."""
        return f"num_heads={len(self.slope)}"


def _heads(x_H: Tensor, visible: Tensor) -> Tensor:
    """[H] as [1,H,1], checked against rows that have a dimension of heads."""
    if visible.dim() == 3 and visible.shape[1] not in (1, len(x_H)) and len(x_H) > 1:
        raise ArgumentError("the number of heads of the scale", f"{visible.shape[1]}", len(x_H))
    return x_H.view(1, -1, 1)
