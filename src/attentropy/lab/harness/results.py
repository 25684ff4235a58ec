"""Rows of a run: choose some, and take their mean and standard deviation over seeds."""

import math
import statistics
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple


class Estimate(NamedTuple):
    """Mean and standard deviation of some numbers.

    Attributes:
        mean: NaN without numbers.
        sd: sample standard deviation; NaN of fewer than two numbers.
        size: how many finite numbers there are.
    """

    mean: float
    sd: float
    size: int

    @classmethod
    def of(cls, numbers: Iterable[float]) -> "Estimate":
        """Mean and sample standard deviation of the finite numbers.

        Args:
            numbers: one for each seed.
        """
        kept = [x for x in numbers if math.isfinite(x)]
        mean = statistics.fmean(kept) if kept else math.nan
        return cls(mean, statistics.stdev(kept) if len(kept) > 1 else math.nan, len(kept))

    def text(self, digits: int) -> str:
        """`mean ± sd`, the mean alone for one number, a dash for none.

        Args:
            digits: after the point.
        """
        if not self.size:
            return "-"
        if self.size == 1:
            return f"{self.mean:.{digits}f}"
        return f"{self.mean:.{digits}f} ± {self.sd:.{digits}f}"


class RunResults:
    """Rows in the order they were measured.

    >>> rows = [{"n": 16, "h": 1.0}, {"n": 16, "h": 3.0}, {"n": 64, "h": 4.0}]
    >>> RunResults(rows).over("h", n=16)
    Estimate(mean=2.0, sd=1.4142135623730951, size=2)
    """

    def __init__(self, rows: Iterable[dict[str, Any]]) -> None:
        self.rows = list(rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def where(self, **wanted: Any) -> "RunResults":
        """The rows whose columns have these values.

        Args:
            wanted: value of each column; a tuple allows any of its values.
        """
        return RunResults(row for row in self.rows if all(_is(row, *w) for w in wanted.items()))

    def values(self, name: str) -> list[Any]:
        """Different values of a column, in the order in which they appear.

        Args:
            name: of the column.
        """
        return list(dict.fromkeys(row[name] for row in self.rows if row.get(name) is not None))

    def over(self, metric: str, **wanted: Any) -> Estimate:
        """Mean and standard deviation of a column over seeds; rows of one seed are averaged first.

        Args:
            metric: column of numbers.
            wanted: columns and values that choose rows.
        """
        seeds: dict[Any, list[float]] = {}
        for i, row in enumerate(self.where(**wanted)):
            if row.get(metric) is not None:
                seeds.setdefault(row.get("seed", f"row {i}"), []).append(row[metric])
        return Estimate.of(Estimate.of(numbers).mean for numbers in seeds.values())

    def mean(self, metric: str, **wanted: Any) -> float:
        """The mean of a column over seeds.

        Args:
            metric: column of numbers.
            wanted: columns and values that choose rows.
        """
        return self.over(metric, **wanted).mean

    def curve(self, x: str, metric: str) -> tuple[list[Any], list[Estimate]]:
        """Values of x in rising order, and the metric at each.

        Args:
            x: column of places.
            metric: column of numbers.
        """
        places = sorted(v for v in self.values(x) if self.over(metric, **{x: v}).size)
        return places, [self.over(metric, **{x: place}) for place in places]


def _is(row: dict[str, Any], name: str, value: Any) -> bool:
    return row.get(name) in value if isinstance(value, tuple) else row.get(name) == value
