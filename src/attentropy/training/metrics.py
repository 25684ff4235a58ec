"""The numbers of one sample that go to a log: aggregates and the worst heads, not all of them."""

import math
from collections.abc import Callable, Iterable, Sequence

from attentropy.core.statistics import TABLE, HeadRow
from attentropy.training.alarms import Alert

PREFIX = "attn"


def _mean(values: Iterable[float]) -> float:
    numbers = list(values)
    return sum(numbers) / len(numbers) if numbers else math.nan


AGGREGATES: dict[str, Callable[[Iterable[float]], float]] = {"mean": _mean, "min": min, "max": max}


class Metrics(dict[str, float]):
    """Scalars by name, and what they were made of.

    Args:
        scalars: the numbers to log, by name.
        rows: the rows of all heads.
        alerts: alarms that rang at this sample.
        loss: the loss of the step, if it is known.
    """

    def __init__(
        self,
        scalars: dict[str, float],
        *,
        rows: Sequence[HeadRow] = (),
        alerts: Sequence[Alert] = (),
        loss: float | None = None,
    ) -> None:
        super().__init__(scalars)
        self.rows, self.alerts, self.loss = tuple(rows), tuple(alerts), loss


def summarize(rows: Sequence[HeadRow], *, worst: int = 5) -> dict[str, float]:
    """Aggregates over all heads, as the table of statistics asks, per layer, and the worst heads.

    Names are `attn/<statistic>/<mean, min or max>`, `attn/layer<index>/<statistic>`, and
    `attn/lowest_entropy/<rank>` and `attn/highest_logit/<rank>` for single heads.

    Args:
        rows: the rows of all heads.
        worst: how many heads are logged one by one, by entropy and by logit.
    """
    found: dict[str, float] = {}
    for name, one in TABLE.items():
        values = _values(rows, name)
        for kind in one.logged if values else ():
            found[f"{PREFIX}/{name}/{kind}"] = AGGREGATES[kind](values)
    for index in sorted({row.index for row in rows}):
        layer = [row for row in rows if row.index == index]
        found[f"{PREFIX}/layer{index:02d}/entropy"] = _mean(_values(layer, "entropy"))
        found[f"{PREFIX}/layer{index:02d}/max_logit"] = max(
            _values(layer, "max_logit"), default=math.nan
        )
    found |= _worst("lowest_entropy", sorted(_values(rows, "entropy")), worst)
    found |= _worst("highest_logit", sorted(_values(rows, "max_logit"), reverse=True), worst)
    return found


def _worst(name: str, ordered: list[float], count: int) -> dict[str, float]:
    return {f"{PREFIX}/{name}/{i}": value for i, value in enumerate(ordered[:count], 1)}


def _values(rows: Iterable[HeadRow], name: str) -> list[float]:
    return [value for row in rows if not math.isnan(value := row[name])]
