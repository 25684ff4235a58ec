"""Before and after on the same texts: the difference of the means, and its standard error."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from attentropy.core.errors import ArgumentError

if TYPE_CHECKING:
    from torch import Tensor

SURE = 2.0  # standard errors that a change must exceed
STRETCH = 64  # tokens of a stretch: long enough for neighbouring stretches to err on their own


class Paired(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The mean loss of the same texts without and with a change.

    Attributes:
        before: the mean loss without it, in nats per token.
        after: the mean loss with it.
        error: the standard error of their difference over the texts; None for a single text.
        texts: the number of texts, windows or stretches that were compared.
    """

    before: float
    after: float
    error: float | None
    texts: int

    @property
    def difference(self) -> float:
        """after - before: below 0 where the change helps."""
        return self.after - self.before

    @property
    def gain(self) -> float:
        """before - after: above 0 where the change helps."""
        return self.before - self.after

    @property
    def helps(self) -> bool:
        """True if the loss falls by more than two standard errors."""
        return self.error is not None and self.gain > SURE * self.error

    @property
    def hurts(self) -> bool:
        """True if the loss rises by more than two standard errors."""
        return self.error is not None and self.difference > SURE * self.error

    def __str__(self) -> str:
        error = "" if self.error is None else f" ± {self.error:.3f}"
        return f"{self.before:.3f} → {self.after:.3f} ({self.difference:+.3f}{error})"


def paired(before: "Tensor | Sequence[float]", after: "Tensor | Sequence[float]") -> Paired:
    """mean(after - before) over texts, with the standard error s / sqrt(m) of m texts.

    Args:
        before: the loss of each text [m], or of each token of it [m, n].
        after: the same with the change, of the same texts in the same order.

    >>> print(paired([3.0, 3.2, 3.1], [2.8, 3.1, 2.9]))
    3.100 → 2.933 (-0.167 ± 0.033)
    """
    import torch

    one, two = (torch.as_tensor(x, dtype=torch.float64).cpu() for x in (before, after))
    if one.shape != two.shape or one.ndim not in (1, 2) or not one.numel():
        found = f"{list(one.shape)} and {list(two.shape)}"
        raise ArgumentError("before and after", "losses of the same texts", found)
    if one.ndim == 2:
        one, two = one.mean(1), two.mean(1)
    change = two - one
    error = float(change.std() / math.sqrt(len(change))) if len(change) > 1 else None
    return Paired(before=float(one.mean()), after=float(two.mean()), error=error, texts=len(one))


def stretches(losses: "Tensor", size: int = STRETCH) -> "Tensor":
    """Token losses [m, n] as stretches of consecutive tokens, [m * (n // size), size].

    What remains at the end of a text is left out. With few texts, stretches are the units of a
    standard error: their differences hardly depend on each other.

    Args:
        losses: of every token.
        size: tokens of a stretch; all n of them where a text is shorter.
    """
    size = max(1, min(size, losses.shape[1]))
    whole = losses.shape[1] // size * size
    return losses[:, :whole].reshape(-1, size)
