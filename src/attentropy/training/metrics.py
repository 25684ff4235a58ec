"""The numbers of one sample that go to a log: aggregates and the worst heads, not all of them."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from attentropy.models.record.rows import HeadRow
from attentropy.training.alarms import Ring

PREFIX = "attn"


def _mean(values: Iterable[float]) -> float:
    numbers = list(values)
    return sum(numbers) / len(numbers) if numbers else math.nan


SUMMARIES: tuple[tuple[str, str, Callable[[Iterable[float]], float]], ...] = (
    ("entropy", "mean", _mean),
    ("entropy", "min", min),
    ("entropy", "max", max),
    ("normalized_entropy", "mean", _mean),
    ("max_logit", "mean", _mean),
    ("max_logit", "max", max),
    ("gradient_flow", "mean", _mean),
    ("gradient_flow", "min", min),
    ("sink_mass", "mean", _mean),
    ("sink_mass", "max", max),
    ("output_norm", "min", min),
)


class Metrics(dict[str, float]):
    """Scalars by name, and what they were made of: every row, the rings, the loss."""

    def __init__(
        self,
        scalars: dict[str, float],
        *,
        rows: Sequence[HeadRow] = (),
        rings: Sequence[Ring] = (),
        loss: float | None = None,
    ) -> None:
        super().__init__(scalars)
        self.rows, self.rings, self.loss = tuple(rows), tuple(rings), loss


def summarize(rows: Sequence[HeadRow], *, worst: int = 5) -> dict[str, float]:
    """Aggregates over all heads, means per layer, and the `worst` heads by entropy and logit."""
    found: dict[str, float] = {}
    for name, kind, reduce in SUMMARIES:
        values = _values(rows, name)
        if values:
            found[f"{PREFIX}/{name}/{kind}"] = reduce(values)
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


def _values(rows: Iterable[Any], name: str) -> list[float]:
    return [value for row in rows if not math.isnan(value := getattr(row, name))]
