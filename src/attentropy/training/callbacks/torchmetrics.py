"""torchmetrics: attention entropy as a Metric, alone, in a MetricCollection or in `self.log`."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from attentropy.core.errors import ArgumentError, ArgumentTypeError
from attentropy.core.results import HeadStats, Stats
from attentropy.core.statistics import TABLE, HeadRow

try:
    from torchmetrics import Metric
except ImportError as error:
    text = "attentropy.training.callbacks.torchmetrics needs torchmetrics: pip install torchmetrics"
    raise ImportError(text) from error

AVERAGED = tuple(
    name
    for name, one in TABLE.items()
    if one.averaging == "mean" and name in HeadStats.__dataclass_fields__
)
"""Statistics whose mean over rows is known of `Stats` and of head rows alike."""


class AttentionEntropy(Metric):
    """(1 / N) sum_r H_r: the mean entropy of all rows of attention that have a choice, in nats.

    A row is one query of one head that saw two keys or more. Rows of all updates count alike, and
    so do those of all processes. Without any row the result is NaN.

    Args:
        statistic: the name of another statistic to average instead of entropy, such as
            "normalized_entropy" or "sink_mass".
        options: those of torchmetrics.Metric, such as dist_sync_on_step.

    >>> import torch, attentropy as at
    >>> metric = AttentionEntropy()
    >>> q = torch.zeros(1, 2, 4, 8)
    >>> metric.update(at.attend(q, q, q).stats)
    >>> round(float(metric.compute()), 4)  # all four keys alike: log 4
    1.3863
    """

    full_state_update = False
    is_differentiable = False
    higher_is_better = None
    total: Tensor
    rows: Tensor

    def __init__(self, *, statistic: str = "entropy", **options: Any) -> None:
        if statistic not in AVERAGED:
            raise ArgumentError("statistic", f"one of {', '.join(AVERAGED)}", repr(statistic))
        super().__init__(**options)
        self.statistic = statistic
        for state in ("total", "rows"):
            zero = torch.zeros((), dtype=torch.float64)
            self.add_state(state, zero, dist_reduce_fx="sum")

    def update(self, seen: Stats | Sequence[HeadRow]) -> None:
        """Add rows of attention.

        Args:
            seen: the statistics that attend() returns, or what heads() of a watch returns. A watch
                keeps adding up: call its clear() before the next batch.
        """
        means, rows = _heads(seen, self.statistic)
        counted = rows > 0
        self.total += (means * rows)[counted].sum().to(self.total.device)
        self.rows += rows.sum().to(self.rows.device)

    def compute(self) -> Tensor:
        """The mean over all rows so far."""
        return self.total / self.rows


def _heads(seen: Stats | Sequence[HeadRow], name: str) -> tuple[Tensor, Tensor]:
    """The mean of each head, and the number of its rows."""
    if isinstance(seen, Stats):
        if getattr(seen, name) is None:
            raise ArgumentError("seen", f"statistics of weights that have {name}", "none")
        heads = seen.per_head()
        return heads[name].double(), heads.rows.double()
    if not isinstance(seen, Sequence) or not all(isinstance(row, HeadRow) for row in seen):
        rule = "the statistics of attend(), or heads() of a watch"
        raise ArgumentTypeError("seen", rule, type(seen).__name__)
    numbers = torch.tensor([[row[name], row.rows] for row in seen], dtype=torch.float64)
    means, rows = numbers.reshape(-1, 2).unbind(1)
    return means, rows
