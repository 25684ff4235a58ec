"""How fast a head's entropy grows with the text: one slope for diagnose() and for scans.

0: the head looks at as many keys however long the text is (invariant). 1: it spreads over all of
them, as random scores do (blurring).

The slope is that of the mean entropy on log n, n the length of the text. A layer with a window
sees no more keys of a long text than of a shorter one: its slope is taken on the logarithm of the
keys that it can see, and says so (`against="visible"`).
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from attentropy.core.statistics import HeadRow

LIMITED = 0.85  # growth of log visible per log n below which a window holds the head back
GROWTH = 2.0  # visible keys must grow by this factor for a slope against them

HeadKey = tuple[str, int, int]


class Slope(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The growth of a head's entropy.

    Attributes:
        value: nats per unit of the logarithm; None with fewer than two lengths, or where a window
            shows about as many keys at every length.
        against: "length" of the text, or "visible" keys in a layer that a window limits.
    """

    value: float | None = None
    against: Literal["length", "visible"] = "length"


def slopes(rows: Iterable[HeadRow]) -> dict[HeadKey, Slope]:
    """The slope of each head, by (layer, call, head), from its rows at several lengths.

    Rows of generation steps, rows without a choice and numbers that are not finite are left out.

    Args:
        rows: rows of one or more lengths.
    """
    points: dict[HeadKey, dict[int, HeadRow]] = {}
    for row in rows:
        found = points.setdefault((row.layer, row.call, row.head), {})
        if row.phase == "forward" and row.visible > 1 and math.isfinite(row.entropy):
            found[row.length] = row
    return {key: _slope([at[n] for n in sorted(at)]) for key, at in points.items()}


def _slope(rows: Sequence[HeadRow]) -> Slope:
    """The slope of one head; rows are of increasing length."""
    if len(rows) < 2:
        return Slope()
    entropies = [row.entropy for row in rows]
    if not is_limited(rows):
        return Slope(_regress([row.length for row in rows], entropies), "length")
    seen = [row.visible for row in rows]
    grows = max(seen) >= GROWTH * min(seen)
    return Slope(_regress(seen, entropies) if grows else None, "visible")


def is_limited(rows: Sequence[HeadRow]) -> bool:
    """Does a window limit what the head sees of the longest text? Lengths increase.

    Without a window the number of visible keys besides the first grows as the length does.

    Args:
        rows: those of one head, lengths increasing.
    """
    before, last = rows[-2:]
    seen = math.log((last.visible - 1) / (before.visible - 1))
    return seen < LIMITED * math.log(last.length / before.length)


def _regress(sizes: Sequence[float], entropies: Sequence[float]) -> float:
    """Least squares of entropy on the logarithm of a size."""
    logs = [math.log(size) for size in sizes]
    return statistics.linear_regression(logs, entropies).slope
