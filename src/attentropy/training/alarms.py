"""Alarms: what a monitor listens for while a model trains.

An alarm is a value with `name`, `action` and `listen(history)`, where `history` holds every sample
so far, the newest last. It gives an `Alert` when it rings. Each head rings once, until it has
recovered.
"""

import math
import statistics
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from attentropy.core.statistics import HeadRow
from attentropy.models.diagnose import Severity, random_deficit

Head = tuple[int, int]
Action = Callable[["Alert", Any], None]


@dataclass(frozen=True)
class Sample:
    """One sample of a run.

    Attributes:
        step: the training step.
        rows: the rows of all heads.
        loss: the loss of the step, if it is known.
    """

    step: int
    rows: tuple[HeadRow, ...]
    loss: float | None = None

    def head(self, key: Head) -> HeadRow | None:
        """The row of one head; None if the sample has no such head.

        Args:
            key: (index of its place, head).
        """
        return next((row for row in self.rows if (row.index, row.head) == key), None)


class Alert(msgspec.Struct, frozen=True):
    """An alarm that rang.

    Attributes:
        step: the training step.
        name: that of the alarm.
        severity: "critical", "warning" or "note".
        heads: the heads concerned, each (index of its place, head).
        text: what is wrong, in a sentence.
        forecast: the step at which the alarm expects trouble.
    """

    step: int
    name: str
    severity: Severity
    heads: tuple[Head, ...]
    text: str
    forecast: int | None = None


class Alarm(Protocol):
    """What a monitor asks of an alarm."""

    @property
    def name(self) -> str:
        """The name of the alarm in logs."""
        ...

    @property
    def action(self) -> Action:
        """What to do when it rings: warn, stop, clip(limit), or a function (alert, monitor).

        It is called in every process of a distributed training, at the same step.
        """
        ...

    def listen(self, history: Sequence[Sample]) -> Alert | None:
        """The alert of the newest sample, with every head concerned; None if all is well.

        Args:
            history: every sample so far, the newest last.
        """
        ...


def warn(alert: Alert, monitor: Any) -> None:
    """Warn, once for each alert, and in the first process only.

    Args:
        alert: what rang.
        monitor: the monitor that heard it.
    """
    if not getattr(monitor, "is_first", True):
        return
    warnings.warn(f"attentropy, step {alert.step}: {alert.text}", RuntimeWarning, stacklevel=2)


def stop(alert: Alert, monitor: Any) -> None:
    """Ask the training loop to stop: it reads `monitor.should_stop`, as the integrations do.

    Args:
        alert: what rang.
        monitor: the monitor that heard it.
    """
    monitor.should_stop = True


def clip(limit: float) -> Action:
    """Cap the logits of the whole model at `limit` from now on, softly: limit * tanh(s / limit).

    Args:
        limit: the largest logit that is left.
    """

    def act(alert: Alert, monitor: Any) -> None:
        if not monitor.changes:
            from attentropy.models.steer.steer import steer

            monitor.changes.append(steer(monitor.model, softcap=limit))

    return act


def _labels(rows: Iterable[HeadRow]) -> str:
    labels = [row.label for row in rows]
    more = f" and {len(labels) - 3} more" if len(labels) > 3 else ""
    return ", ".join(labels[:3]) + more


def _keys(rows: Iterable[HeadRow]) -> tuple[Head, ...]:
    return tuple((row.index, row.head) for row in rows)


@dataclass(frozen=True)
class NotFinite:
    """The loss, an entropy or a logit is NaN or infinite."""

    action: Action = warn
    name: str = "not finite"

    def listen(self, history: Sequence[Sample]) -> Alert | None:
        """Heads with numbers that are not finite; none, if it is the loss alone.

        Args:
            history: every sample so far, the newest last.
        """
        now = history[-1]
        lost = [row for row in now.rows if not math.isfinite(row.entropy + row.max_logit)]
        broken = now.loss is not None and not math.isfinite(now.loss)
        if not lost and not broken:
            return None
        where = f"attention in {_labels(lost)}" if lost else "the loss"
        return Alert(now.step, self.name, "critical", _keys(lost), f"{where} is not finite")


@dataclass(frozen=True)
class EntropyCollapse:
    """A head's entropy fell below `share` of what it had, and below `floor` nats.

    What it had is the median of its first `base` samples.
    """

    share: float = 0.25
    floor: float = 0.5
    base: int = 3
    action: Action = warn
    name: str = "entropy collapse"

    def listen(self, history: Sequence[Sample]) -> Alert | None:
        """Heads that collapsed.

        Args:
            history: every sample so far, the newest last.
        """
        now = history[-1]
        if len(history) <= 1:
            return None
        start = history[: min(self.base, len(history) - 1)]
        fallen = [row for row in now.rows if self._fell(row, start)]
        if not fallen:
            return None
        low = min(row.entropy for row in fallen)
        text = f"entropy collapsed to {low:.2g} nats in {_labels(fallen)}"
        return Alert(now.step, self.name, "warning", _keys(fallen), text)

    def _fell(self, row: HeadRow, start: Sequence[Sample]) -> bool:
        before = [old.entropy for s in start if (old := s.head((row.index, row.head)))]
        return bool(before) and row.entropy < min(
            self.floor, self.share * statistics.median(before)
        )


@dataclass(frozen=True)
class NearUniform:
    """A head became less selective than random scores of a small spread, and had not been so."""

    random_spread: float = 0.05
    action: Action = warn
    name: str = "near-uniform"

    def listen(self, history: Sequence[Sample]) -> Alert | None:
        """Heads that went flat.

        Args:
            history: every sample so far, the newest last.
        """
        now, first = history[-1], history[0]
        flat = [
            row
            for row in now.rows
            if self._is_flat(row)
            and (old := first.head((row.index, row.head))) is not None
            and not self._is_flat(old)
        ]
        if not flat:
            return None
        text = f"attention went uniform in {_labels(flat)}"
        return Alert(now.step, self.name, "warning", _keys(flat), text)

    def _is_flat(self, row: HeadRow) -> bool:
        return row.visible >= 4 and row.deficit < random_deficit(row.visible, self.random_spread)


@dataclass(frozen=True)
class LogitGrowth:
    """The largest logit of a head passed `limit`, or will soon at its pace.

    The pace is the line through its last `window` samples, of the logit or of its logarithm,
    whichever fits better. It is trusted for `reach` times the steps of the window, and for heads
    that have come to `share` of the limit.
    """

    limit: float = 50.0
    window: int = 6
    reach: float = 4.0
    share: float = 0.25
    action: Action = warn
    name: str = "logit growth"

    def listen(self, history: Sequence[Sample]) -> Alert | None:
        """Heads beyond the limit, or else those that are on their way.

        Args:
            history: every sample so far, the newest last.
        """
        now = history[-1]
        beyond = [row for row in now.rows if row.max_logit > self.limit]
        if beyond:
            top = max(row.max_logit for row in beyond)
            text = f"logits reached {top:.3g} (limit {self.limit:g}) in {_labels(beyond)}"
            return Alert(now.step, self.name, "critical", _keys(beyond), text, now.step)
        coming = {
            row: step for row in now.rows if (step := self._forecast(row, history)) is not None
        }
        if not coming:
            return None
        soonest = min(coming.values())
        text = f"logits of {_labels(coming)} will pass {self.limit:g} at about step {soonest}"
        return Alert(now.step, self.name, "warning", _keys(coming), text, soonest)

    def _forecast(self, row: HeadRow, history: Sequence[Sample]) -> int | None:
        if row.max_logit < self.share * self.limit:
            return None
        points = [
            (sample.step, old.max_logit)
            for sample in history[-self.window :]
            if (old := sample.head((row.index, row.head))) and math.isfinite(old.max_logit)
        ]
        if len(points) < self.window:
            return None
        step = crossing(points, self.limit)
        last = points[-1][0] + self.reach * (points[-1][0] - points[0][0])
        return step if step is not None and step <= last else None


def crossing(points: Sequence[tuple[int, float]], limit: float) -> int | None:
    """The step at which a rising series reaches `limit`; None if it does not rise clearly.

    Args:
        points: (step, value), steps increasing.
        limit: the value to reach.

    >>> crossing([(0, 1.0), (10, 2.0), (20, 4.0), (30, 8.0)], 64.0)
    60
    """
    steps = [step for step, _ in points]
    values = [value for _, value in points]
    fits = [_fit(steps, values, limit)]
    if min(values) > 0:
        fits.append(_fit(steps, [math.log(v) for v in values], math.log(limit)))
    certainty, step = max(fits, key=lambda fit: fit[0])
    return step if certainty > 0.8 else None


def _fit(steps: list[int], values: list[float], goal: float) -> tuple[float, int | None]:
    """How well a line fits (its correlation), and where it reaches the goal."""
    if len(set(steps)) < 2 or len(set(values)) < 2:
        return 0.0, None
    slope, intercept = statistics.linear_regression(steps, values)
    if slope <= 0:
        return 0.0, None
    return statistics.correlation(steps, values), max(steps[-1], round((goal - intercept) / slope))


DEFAULT: tuple[Alarm, ...] = (NotFinite(), EntropyCollapse(), LogitGrowth(), NearUniform())
