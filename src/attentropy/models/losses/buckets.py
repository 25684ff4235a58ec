"""Loss by position: the mean over buckets of positions, with its standard error."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec

from attentropy.core.errors import ArgumentError
from attentropy.models.losses.paired import stretches

if TYPE_CHECKING:
    from torch import Tensor

BUCKETS = 24


class Bucket(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The loss of the tokens at some positions.

    Attributes:
        start: the first position of the bucket; a token at position p has p tokens before it.
        stop: the position after the last.
        loss: the mean loss of these tokens, in nats.
        error: its standard error over stretches of text; None if there is one stretch.
    """

    start: int
    stop: int
    loss: float
    error: float | None


def edges(length: int, count: int = BUCKETS) -> list[int]:
    """Positions at which buckets begin and end: 1 to `length`, `count` buckets of equal size.

    Args:
        length: the number of tokens in a window.
        count: the number of buckets; fewer in a window of fewer tokens.

    >>> edges(12, 3)
    [1, 4, 8, 12]
    """
    count = max(1, min(count, length // 2))
    return [1, *(length * i // count for i in range(1, count + 1))]


def by_position(losses: "Tensor", bounds: Sequence[int] | None = None) -> list[Bucket]:
    """The mean loss in buckets of position.

    Args:
        losses: [B, N - 1], as `token_losses` gives them: column i is the loss of the token at
            position i + 1.
        bounds: increasing positions between 1 and N, where buckets begin and end; by default 24
            buckets of equal size.
    """
    length = losses.shape[1] + 1
    bounds = edges(length) if bounds is None else list(bounds)
    rising = all(a < b for a, b in pairwise(bounds))
    if len(bounds) < 2 or not rising or bounds[0] < 1 or bounds[-1] > length:
        raise ArgumentError("bounds", f"increasing positions between 1 and {length}", list(bounds))
    return [_bucket(losses[:, a - 1 : b - 1], a, b) for a, b in pairwise(bounds)]


def _bucket(part: "Tensor", start: int, stop: int) -> Bucket:
    means = stretches(part.double()).mean(1)
    error = float(means.std() / math.sqrt(len(means))) if len(means) > 1 else None
    return Bucket(start=start, stop=stop, loss=float(part.double().mean()), error=error)
