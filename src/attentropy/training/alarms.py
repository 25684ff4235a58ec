"""Alarms: what a monitor listens for while a model trains.

An alarm is a value with `name`, `action` and `listen(history)`, where `history` holds the first and
the latest samples, the newest last. It gives an `Alert` when it rings. It may have `base` and
`window`, the number of first and of latest samples that it looks at. Alarms keep nothing: the
monitor remembers which heads were told of (attentropy.training.ringing).
"""

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
import numpy as np

from attentropy.core.statistics import HeadRow
from attentropy.models.diagnose import Severity, Thresholds, random_deficit
from attentropy.training.forecasts import Lines
from attentropy.training.samples import Array, Head, Sample, courses

Action = Callable[["Alert", Any], None]
LIMITS = Thresholds()


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
            history: the first and the latest samples, the newest last.
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


def _chosen(sample: Sample, heads: Array) -> list[HeadRow]:
    """The rows of a sample at which `heads` [H] is True."""
    return [sample.rows[i] for i in np.flatnonzero(heads)]


def _labels(rows: Iterable[HeadRow]) -> str:
    labels = [row.label for row in rows]
    more = f" and {len(labels) - 3} more" if len(labels) > 3 else ""
    return ", ".join(labels[:3]) + more


def _keys(rows: Iterable[HeadRow]) -> tuple[Head, ...]:
    return tuple((row.index, row.head) for row in rows)


@dataclass(frozen=True)
class NotFinite:
    """The loss, an entropy or a logit is NaN or infinite.

    Attributes:
        action: what to do when it rings.
        name: the name of the alarm in logs.
    """

    action: Action = warn
    name: str = "not finite"

    def listen(self, history: Sequence[Sample]) -> Alert | None:
        """Heads with numbers that are not finite; none, if it is the loss alone.

        Args:
            history: the first and the latest samples, the newest last.
        """
        now = history[-1]
        lost = _chosen(now, ~np.isfinite(now.columns["entropy"] + now.columns["max_logit"]))
        broken = now.loss is not None and not math.isfinite(now.loss)
        if not lost and not broken:
            return None
        where = f"attention in {_labels(lost)}" if lost else "the loss"
        return Alert(now.step, self.name, "critical", _keys(lost), f"{where} is not finite")


@dataclass(frozen=True)
class EntropyCollapse:
    """A head's entropy H fell fast to few keys, or slowly to one.

    It rings when one of these holds:

        fast: H < floor and H < share * (H at the start of the latest `window` samples)
        slow: H < log(least_keys) and H < share * (H at the start of the run)

    A start is the median of `base` samples. A head that learns to look at one key takes its time,
    and keeps some doubt: neither rule sees it.

    Attributes:
        share: the part of its entropy that a collapsed head has left.
        floor: nats; a head above it looks at several keys (0.5 is 1.6 keys).
        base: number of samples that make a start.
        window: number of samples within which a fall is fast.
        least_keys: a head that looks at fewer passes no gradient.
        action: what to do when it rings.
        name: the name of the alarm in logs.
    """

    share: float = 0.25
    floor: float = 0.5
    base: int = 3
    action: Action = warn
    name: str = "entropy collapse"
    window: int = 5
    least_keys: float = LIMITS.collapsed_perplexity

    def listen(self, history: Sequence[Sample]) -> Alert | None:
        """Heads that collapsed.

        Args:
            history: the first and the latest samples, the newest last.
        """
        now = history[-1]
        if len(history) <= 1:
            return None
        fast = self._fell(history[-self.window :], self.floor)
        slow = self._fell(history, math.log(self.least_keys))
        fallen = _chosen(now, fast | slow)
        if not fallen:
            return None
        low = min(row.entropy for row in fallen)
        text = f"entropy collapsed to {low:.2g} nats in {_labels(fallen)}"
        return Alert(now.step, self.name, "warning", _keys(fallen), text)

    def _fell(self, samples: Sequence[Sample], floor: float) -> Array:
        """Heads [H] whose entropy is below the floor and below its share of the first samples."""
        fallen = samples[-1].columns["entropy"] < floor
        if fallen.any():
            start = [*samples[: min(self.base, len(samples) - 1)], samples[-1]]
            entropies = courses(start, "entropy")[:, fallen]
            before = np.median(entropies[:-1], axis=0)
            fallen[fallen] = entropies[-1] < self.share * before
        return fallen


@dataclass(frozen=True)
class NearUniform:
    """A head became less selective than random scores of a small spread, and had not been so.

    Attributes:
        random_spread: the standard deviation of the random scores.
        action: what to do when it rings.
        name: the name of the alarm in logs.
    """

    random_spread: float = 0.05
    action: Action = warn
    name: str = "near-uniform"

    def listen(self, history: Sequence[Sample]) -> Alert | None:
        """Heads that went flat.

        Args:
            history: the first and the latest samples, the newest last.
        """
        now = history[-1]
        ends = [history[0], now]
        before, after = self._is_flat(courses(ends, "visible"), courses(ends, "deficit"))
        known = np.isfinite(courses(ends, "deficit")[0])
        flat = _chosen(now, after & ~before & known)
        if not flat:
            return None
        text = f"attention went uniform in {_labels(flat)}"
        return Alert(now.step, self.name, "warning", _keys(flat), text)

    def _is_flat(self, visible: Array, deficit: Array) -> Array:
        random = random_deficit(visible, self.random_spread)  # type: ignore[arg-type]  # elementwise
        return (visible >= 4) & (deficit < random)


@dataclass(frozen=True)
class LogitGrowth:
    """The largest logit of a head passed `limit`, or is on its way there.

    It is on its way if the lower end of a forecast passes the limit. The forecast is a line through
    the latest `window` samples (attentropy.training.forecasts). It looks ahead `reach` times the
    steps of the window, by default no further than it looks back, and its lower end is what the
    logit then exceeds with the given confidence. Heads below `share` of the limit are not judged.

    Attributes:
        limit: beyond 50, logits in bfloat16 are rounded by 0.25 or more, and weights by 28 %.
        window: number of samples that a line goes through; 3 or more.
        reach: how far to look ahead, in windows.
        share: the part of the limit from which on a head is judged.
        action: what to do when it rings.
        name: the name of the alarm in logs.
        confidence: of the lower end of a forecast.
    """

    limit: float = LIMITS.most_logit
    window: int = 6
    reach: float = 1.0
    share: float = 0.25
    action: Action = warn
    name: str = "logit growth"
    confidence: float = 0.95

    def listen(self, history: Sequence[Sample]) -> Alert | None:
        """Heads beyond the limit, or else those that are on their way.

        Args:
            history: the first and the latest samples, the newest last.
        """
        now = history[-1]
        beyond = _chosen(now, now.columns["max_logit"] > self.limit)
        if beyond:
            top = max(row.max_logit for row in beyond)
            text = f"logits reached {top:.3g} (limit {self.limit:g}) in {_labels(beyond)}"
            return Alert(now.step, self.name, "critical", _keys(beyond), text, now.step)
        return self._foreseen(history[-self.window :]) if len(history) >= self.window else None

    def _foreseen(self, samples: Sequence[Sample]) -> Alert | None:
        now, steps = samples[-1], np.array([float(sample.step) for sample in samples])
        high = now.columns["max_logit"] >= self.share * self.limit
        if not high.any():
            return None
        lines = Lines.through(steps, courses(samples, "max_logit"))
        last = steps[-1] + self.reach * (steps[-1] - steps[0])
        rising = high & (lines.lower_end(last, self.confidence) >= self.limit)
        coming = _chosen(now, rising)
        if not coming:
            return None
        soonest = max(now.step, round(float(lines.reach(self.limit)[rising].min())))
        text = f"logits of {_labels(coming)} will pass {self.limit:g} at about step {soonest}"
        return Alert(now.step, self.name, "warning", _keys(coming), text, soonest)


DEFAULT: tuple[Alarm, ...] = (NotFinite(), EntropyCollapse(), LogitGrowth(), NearUniform())
