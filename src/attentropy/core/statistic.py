"""What the table of statistics says about each statistic."""

from typing import Literal

import msgspec


class Statistic(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table of statistics.

    Attributes:
        name: the field's name, as in Python, JSON and CSV.
        symbol: how formulas write it.
        label: how the report and tables call it.
        formula: what it is, for one row of attention.
        meaning: how to read it, in a sentence.
        low: what small values mean, in a word.
        high: what large values mean, in a word.
        unit: "nats", "keys", "tokens", or "" for a plain number.
        range: the least and the most that it can be; None where there is no limit.
        scale: how axes and colours grow.
        better: which direction is healthier, if either is.
        averaging: "mean" over rows, "maximum" over rows, or "derived" from other means and sums.
        sampled: "always" if it is taken on evenly spaced rows of each call; "unless rows are
            kept" if `watch(model, keep="rows")` takes it on every row and other watches sample.
        column: its title in narrow tables; "" leaves it out of them.
        logged: which aggregates over heads a monitor logs.
        colours: where a colour scale begins and ends; None for `range`, or for the data.
        shown: False keeps it out of the report, not out of files.
    """

    symbol: str
    label: str
    formula: str
    meaning: str
    low: str
    high: str
    name: str = ""
    unit: Literal["", "nats", "keys", "tokens"] = ""
    range: tuple[float | None, float | None] = (None, None)
    scale: Literal["linear", "log"] = "linear"
    better: Literal["low", "high", "neither"] = "neither"
    averaging: Literal["mean", "maximum", "derived"] = "mean"
    sampled: Literal["never", "unless rows are kept", "always"] = "never"
    column: str = ""
    logged: tuple[Literal["mean", "min", "max"], ...] = ()
    colours: tuple[float, float] | None = None
    shown: bool = True

    @property
    def shades(self) -> tuple[float, float] | None:
        """Where a colour scale begins and ends; None if only the data can say."""
        least, most = self.range
        if self.colours is None and least is not None and most is not None:
            return least, most
        return self.colours
