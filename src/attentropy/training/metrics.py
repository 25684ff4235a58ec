"""The numbers of one sample that are logged: aggregates and the worst heads, not every head."""

from collections.abc import Callable, Sequence

import numpy as np

from attentropy.core.statistics import TABLE, HeadRow
from attentropy.training.alarms import Alert
from attentropy.training.samples import Array, Columns

PREFIX = "attn"
AGGREGATES: dict[str, Callable[[Array], float]] = {"mean": np.mean, "min": np.min, "max": np.max}


class Metrics(dict[str, float]):
    """Scalars by name, and the rows they come from.

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


def summarize(rows: Sequence[HeadRow] | Columns, *, worst: int = 5) -> dict[str, float]:
    """Aggregates over all heads, as the table of statistics asks, per layer, and the worst heads.

    Names are `attn/<statistic>/<mean, min or max>` and `attn/layer<index>/<statistic>`; for single
    heads `attn/lowest_entropy/<rank>` and `attn/highest_logit/<rank>`.

    Args:
        rows: the rows of all heads, or their columns.
        worst: how many heads are logged one by one, by entropy and by logit.
    """
    columns = rows if isinstance(rows, Columns) else Columns(rows)
    found: dict[str, float] = {}
    for name, one in TABLE.items():
        known = _known(columns[name]) if one.logged else np.empty(0)
        for kind in one.logged if len(known) else ():
            found[f"{PREFIX}/{name}/{kind}"] = float(AGGREGATES[kind](known))
    entropy, logit = columns["entropy"], columns["max_logit"]
    found |= _layers(columns["index"].astype(int), entropy, logit)
    found |= _worst("lowest_entropy", np.sort(_known(entropy)), worst)
    found |= _worst("highest_logit", -np.sort(-_known(logit)), worst)
    return found


def _layers(index: Array, entropy: Array, logit: Array) -> dict[str, float]:
    """Mean entropy and largest logit of each layer, without the heads that have no number."""
    if not len(index):
        return {}
    order = np.argsort(index, kind="stable")
    layers, starts = np.unique(index[order], return_index=True)
    known = ~np.isnan(entropy[order])
    count = np.add.reduceat(known.astype(float), starts)
    total = np.add.reduceat(np.where(known, entropy[order], 0.0), starts)
    mean = total / np.where(count == 0, np.nan, count)
    top = np.fmax.reduceat(logit[order], starts)
    found: dict[str, float] = {}
    for layer, low, high in zip(layers, mean.tolist(), top.tolist(), strict=True):
        found[f"{PREFIX}/layer{layer:02d}/entropy"] = low
        found[f"{PREFIX}/layer{layer:02d}/max_logit"] = high
    return found


def _worst(name: str, ordered: Array, count: int) -> dict[str, float]:
    chosen = ordered[:count].tolist()
    return {f"{PREFIX}/{name}/{i}": value for i, value in enumerate(chosen, 1)}


def _known(values: Array) -> Array:
    return values[~np.isnan(values)]
