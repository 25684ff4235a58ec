"""Scores to experiment on: independent draws of a law, and a planted key among them."""

from collections.abc import Callable

import torch
from torch import Tensor


def gaussian(rows: int, n: int, rng: torch.Generator) -> Tensor:
    """iid N(0, 1) scores [rows, n]."""
    return torch.randn(rows, n, generator=rng)


def bounded(rows: int, n: int, rng: torch.Generator) -> Tensor:
    """iid uniform scores of variance 1."""
    return (2 * torch.rand(rows, n, generator=rng) - 1) * 3**0.5


def planted(margin: float) -> Callable[[int, int, torch.Generator], Tensor]:
    """N(0, 1) scores, except for the first key, which sits `margin` above their mean."""

    def scores(rows: int, n: int, rng: torch.Generator) -> Tensor:
        s = gaussian(rows, n, rng)
        s[:, 0] = margin
        return s

    return scores


def along_one_axis(scores: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Queries [rows,1,1,width] and keys [rows,1,n,width] with q . k = sqrt(width) * score."""
    q = scores.new_zeros(len(scores), 1, 1, width)
    q[..., 0] = width**0.5
    k = scores.new_zeros(len(scores), 1, scores.shape[1], width)
    k[:, 0, :, 0] = scores
    return q, k
