"""How entropy grows with length: the slope of a head's mean entropy against log n.

0: the head looks at as many keys however long the text (invariant). 1: it spreads over all of
them (blurring), as a uniform head does.
"""

import math
from collections.abc import Sequence

from attentropy.scans.schema import Measure, Number, Table


def slope(lengths: Sequence[int], entropies: Sequence[Number]) -> Number:
    """Least squares of H on log n over the lengths where H exists; None below two of them.

    >>> slope([64, 128, 256], [math.log(64), math.log(128), math.log(256)])
    1.0
    """
    points = [(math.log(n), h) for n, h in zip(lengths, entropies, strict=True) if h is not None]
    if len(points) < 2:
        return None
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    above = sum((x - mean_x) * (y - mean_y) for x, y in points)
    below = sum((x - mean_x) ** 2 for x, _ in points)
    return round(above / below, 6)


def slopes(measures: Sequence[Measure]) -> Table:
    """`slope` for every head; all None while there are fewer than two lengths."""
    lengths = [measure.length for measure in measures]
    tables = [measure.statistics["entropy"] for measure in measures]
    return [
        [slope(lengths, entropies) for entropies in zip(*layers, strict=True)]
        for layers in zip(*tables, strict=True)
    ]
