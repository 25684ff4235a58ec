"""Scores to experiment on: independent draws of a law, and a planted key among them."""

from collections.abc import Callable

import torch
from torch import Tensor


def gaussian(rows: int, n: int, rng: torch.Generator) -> Tensor:
    """iid N(0, 1) scores [rows, n].

    Args:
        rows: number of rows.
        n: number of keys.
        rng: source of random numbers.
    """
    return torch.randn(rows, n, generator=rng)


def bounded(rows: int, n: int, rng: torch.Generator) -> Tensor:
    """iid uniform scores of variance 1.

    Args:
        rows: number of rows.
        n: number of keys.
        rng: source of random numbers.
    """
    return (2 * torch.rand(rows, n, generator=rng) - 1) * 3**0.5


def planted(margin: float) -> Callable[[int, int, torch.Generator], Tensor]:
    """A law of N(0, 1) scores whose first key has the score `margin`.

    Args:
        margin: score of the planted key.
    """

    def scores(rows: int, n: int, rng: torch.Generator) -> Tensor:
        s = gaussian(rows, n, rng)
        s[:, 0] = margin
        return s

    return scores


def along_one_axis(scores: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Queries [rows,1,1,width] and keys [rows,1,n,width] with q . k = sqrt(width) * score.

    Args:
        scores: [rows, n].
        width: of queries and keys.
    """
    q = scores.new_zeros(len(scores), 1, 1, width)
    q[..., 0] = width**0.5
    k = scores.new_zeros(len(scores), 1, scores.shape[1], width)
    k[:, 0, :, 0] = scores
    return q, k
