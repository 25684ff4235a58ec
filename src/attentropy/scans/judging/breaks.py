"""Where does the loss break, and why? From losses by position, compared with truncation."""

import math
from itertools import pairwise
from statistics import fmean

from torch import Tensor, nn

from attentropy.distributed.team import ALONE, Team
from attentropy.models.losses.breaking import judged_tokens, why_it_breaks
from attentropy.models.losses.buckets import edges
from attentropy.models.losses.cause import Cause
from attentropy.models.losses.paired import STRETCH, Paired, paired, stretches
from attentropy.models.losses.tokens import each_row, token_losses, truncated_losses
from attentropy.scans.measuring.lengths import Windows
from attentropy.scans.schema import Excess, Measure

RISE = 0.03  # nats per token from which a rise counts
NEAR = 1.25  # a rise that shows within this many trained lengths began at the trained length


def breaks_at(noticed: int, trained: int) -> int:
    """Where a model breaks: at its trained length, unless the rise shows much later.

    Args:
        noticed: the first position at which the loss is certainly above that of truncation.
        trained: the trained length.
    """
    return trained if noticed <= NEAR * trained else noticed


def stretch_means(losses: Tensor) -> list[float | None]:
    """The mean loss of every 64 tokens of a text; None where a token has no loss.

    Args:
        losses: by place in the text, NaN where there is none.
    """
    whole = losses[: len(losses) // STRETCH * STRETCH].view(-1, STRETCH).double()
    known = ~whole.isnan()
    means = whole.nan_to_num(0.0).sum(1) / known.sum(1)
    enough = (known.sum(1) >= STRETCH // 2).tolist()
    return [
        float(f"{value:.6g}") if ok and math.isfinite(value) else None
        for value, ok in zip(means.tolist(), enough, strict=True)
    ]


def rise(measures: list[Measure]) -> tuple[int, Paired] | None:
    """The longest length, if the same text loses more there than at the best shorter length.

    Args:
        measures: of increasing lengths.
    """
    known = [measure for measure in measures if measure.loss is not None]
    if len(known) < 2:
        return None
    best = min(known[:-1], key=lambda measure: _mean(measure, known[-1]))
    pairs = _common(best, known[-1])
    if len(pairs) < 2:
        return None
    change = paired([a for a, _ in pairs], [b for _, b in pairs])
    return (best.length, change) if is_rise(change) else None


def is_rise(change: Paired) -> bool:
    """True if the loss rises by more than two standard errors and by enough to matter.

    Args:
        change: without, and with, the longer text.
    """
    return change.hurts and change.difference > RISE


def _mean(one: Measure, other: Measure) -> float:
    pairs = _common(one, other)
    return fmean(a for a, _ in pairs) if pairs else math.inf


def _common(one: Measure, other: Measure) -> list[tuple[float, float]]:
    """Stretches of the text that both lengths predict."""
    both = zip(one.stretches, other.stretches, strict=False)
    return [(a, b) for a, b in both if a is not None and b is not None]


class Beyond:
    """The windows of one length beyond the trained one: their losses, whole and truncated.

    Args:
        model: a causal model.
        text: what it reads.
        length: tokens of a window.
        trained: the trained length.
        whole: token losses of the windows, if they are known already.
        team: processes that share the windows.
    """

    def __init__(
        self,
        model: nn.Module,
        text: Windows,
        length: int,
        *,
        trained: int,
        whole: Tensor | None,
        team: Team = ALONE,
    ) -> None:
        self.model, self.rows, self.team = model, text.rows(length), team
        self.length, self.trained, self.begin = length, trained, text.begin
        self.tail = length - trained - len(text.end)
        rows = self.rows[:, : length - len(text.end)]
        self.rows = rows
        self.whole = self.losses() if whole is None else whole[:, : rows.shape[1] - 1]
        self.truncated = each_row(
            model,
            lambda row: truncated_losses(
                model, row, trained=trained, last=self.tail, begin=self.begin
            ),
            rows,
            team=team,
        )

    def losses(self) -> Tensor:
        """Token losses of all windows, one window at a time."""
        return each_row(
            self.model, lambda row: token_losses(self.model, row), self.rows, team=self.team
        )

    @property
    def past(self) -> Tensor:
        """Losses of the tokens past the trained length."""
        return self.whole[:, -self.tail :]

    def excess(self) -> list[Excess]:
        """The loss compared with truncation, in buckets of position."""
        bounds = sorted(
            {self.trained, *(edge for edge in edges(self.length) if edge > self.trained)}
        )
        bounds[-1] = self.trained + self.tail
        return [Excess(a, b, self._between(a, b)) for a, b in pairwise(bounds)]

    def _between(self, start: int, stop: int) -> Paired:
        part = slice(start - self.trained, stop - self.trained)
        return paired(stretches(self.truncated[:, part]), stretches(self.past[:, part]))

    def noticed_at(self) -> int | None:
        """The first position from which the loss is higher, there and in all later buckets."""
        end = self.trained + self.tail
        reach = max(STRETCH, self.tail // 8)
        for bucket in self.excess():
            near = self._between(bucket.start, min(bucket.start + reach, end))
            if is_rise(near) and is_rise(self._between(bucket.start, end)):
                return bucket.start
        return None

    def why(self) -> Cause:
        """The two probes, on the end of the windows."""
        last = min(judged_tokens(self.model, self.length, self.trained), self.tail)
        return why_it_breaks(
            self.model,
            self.rows,
            trained=self.trained,
            last=last,
            whole=self.past[:, -last:],
            truncated=self.truncated[:, -last:],
            begin=self.begin,
            team=self.team,
        )
