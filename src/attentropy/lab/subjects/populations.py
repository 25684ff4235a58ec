"""Scores to experiment on: iid laws and planted keys; and the embedded model with its text."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from attentropy.core.errors import AttentropyError

if TYPE_CHECKING:
    from attentropy.lab.embedded import EmbeddedModel


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


def embedded() -> "tuple[EmbeddedModel, Tensor]":
    """The embedded model and its sample text as integers."""
    from attentropy.lab.embedded import load_embedded

    try:
        model = load_embedded()
    except FileNotFoundError:
        raise AttentropyError("this installation has no embedded model") from None
    return model, sample()


def sample() -> Tensor:
    """The sample text of the package as integers below 256."""
    from attentropy.lab.embedded import sample_bytes

    try:
        text = sample_bytes()
    except FileNotFoundError:
        raise AttentropyError("this installation has no sample text") from None
    return torch.frombuffer(bytearray(text), dtype=torch.uint8).long()


def has_embedded() -> bool:
    """Is the embedded model there?"""
    from importlib.resources import files

    return (files("attentropy.lab.embedded") / "data" / "model.safetensors").is_file()
