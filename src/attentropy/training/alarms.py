"""Alarms: what a monitor listens for while a model trains.

An alarm is a value with `name`, `action` and `listen(history)`, where `history` holds the first and
the latest samples, the newest last. It gives an `Alert` when it rings. It may have `base` and
`window`, the number of first and of latest samples that it looks at. Alarms have no state: the
monitor remembers which heads it has reported (attentropy.training.ringing).
"""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
import numpy as np

from attentropy.core.errors import ArgumentError
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
    """What a monitor needs from an alarm."""

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
        alert: the alert.
        monitor: the monitor that raised it.
    """
    if not getattr(monitor, "is_first", True):
        return
    warnings.warn(f"attentropy, step {alert.step}: {alert.text}", RuntimeWarning, stacklevel=2)


def stop(alert: Alert, monitor: Any) -> None:
    """Ask the training loop to stop: it reads `monitor.should_stop`, as the integrations do.

    Args:
        alert: the alert.
        monitor: the monitor that raised it.
    """
    monitor.should_stop = True


def clip(limit: float) -> Action:
    """From now on, cap the logits of the whole model softly at `limit`: limit * tanh(s / limit).

    Args:
        limit: the bound of the logits.
    """

    def act(alert: Alert, monitor: Any) -> None:
        if not monitor.changes:
            from attentropy.models.steer.steer import steer

            monitor.changes.append(steer(monitor.model, softcap=limit))

    return act


def _count(name: str, value: int, *, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ArgumentError(name, f"an integer >= {least}", repr(value))


def _heads(sample: Sample, chosen: Array) -> tuple[Head, ...]:
    """The keys of the heads at which `chosen` [H] is True."""
    index, head = (sample.columns[name][chosen].astype(int) for name in ("index", "head"))
    return tuple(zip(index.tolist(), head.tolist(), strict=True))


def _labels(sample: Sample, chosen: Array) -> str:
    """The names of three heads at which `chosen` [H] is True, and how many more there are."""
    places = np.flatnonzero(chosen)
    more = f" and {len(places) - 3} more" if len(places) > 3 else ""
    return ", ".join(sample.rows[i].label for i in places[:3]) + more


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
        lost = ~np.isfinite(now.columns["entropy"] + now.columns["max_logit"])
        broken = now.loss is not None and not math.isfinite(now.loss)
        if not lost.any() and not broken:
            return None
        where = f"attention in {_labels(now, lost)}" if lost.any() else "the loss"
        return Alert(now.step, self.name, "critical", _heads(now, lost), f"{where} is not finite")


@dataclass(frozen=True)
class EntropyCollapse:
    """A head's entropy H fell fast to few keys, or slowly to one.

    It rings when one of these holds:

        fast: H < floor and H < share * (H at the start of the latest `window` samples)
        slow: H < log(least_keys) and H < share * (H at the start of the run)

    A start is the median of `base` samples. A head that learns to look at one key does so slowly
    and keeps some entropy, so neither rule rings for it.

    Attributes:
        share: the part of its entropy that a collapsed head has left.
        floor: nats; a head above it looks at several keys (0.5 is 1.6 keys).
        base: number of samples that make a start.
        window: number of samples within which a fall is fast.
        least_keys: a head that looks at fewer keys than this passes no gradient.
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

    def __post_init__(self) -> None:
        _count("EntropyCollapse: base", self.base, least=1)
        _count("EntropyCollapse: window", self.window, least=2)

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
        fallen = fast | slow
        if not fallen.any():
            return None
        low = now.columns["entropy"][fallen].min()
        text = f"entropy collapsed to {low:.2g} nats in {_labels(now, fallen)}"
        return Alert(now.step, self.name, "warning", _heads(now, fallen), text)

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
    """A head became less selective than random scores of a small spread, and was not so before.

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
        flat = after & ~before & known
        if not flat.any():
            return None
        text = f"attention went uniform in {_labels(now, flat)}"
        return Alert(now.step, self.name, "warning", _heads(now, flat), text)

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

    def __post_init__(self) -> None:
        _count("LogitGrowth: window", self.window, least=3)
        if not 0 < self.confidence < 1:
            raise ArgumentError("LogitGrowth: confidence", "between 0 and 1", self.confidence)

    def listen(self, history: Sequence[Sample]) -> Alert | None:
        """Heads beyond the limit, or else those that are on their way.

        Args:
            history: the first and the latest samples, the newest last.
        """
        now = history[-1]
        beyond = now.columns["max_logit"] > self.limit
        if beyond.any():
            top = now.columns["max_logit"][beyond].max()
            text = f"logits reached {top:.3g} (limit {self.limit:g}) in {_labels(now, beyond)}"
            return Alert(now.step, self.name, "critical", _heads(now, beyond), text, now.step)
        return self._foreseen(history[-self.window :]) if len(history) >= self.window else None

    def _foreseen(self, samples: Sequence[Sample]) -> Alert | None:
        now, steps = samples[-1], np.array([float(sample.step) for sample in samples])
        high = now.columns["max_logit"] >= self.share * self.limit
        if not high.any():
            return None
        lines = Lines.through(steps, courses(samples, "max_logit"))
        last = steps[-1] + self.reach * (steps[-1] - steps[0])
        rising = high & (lines.lower_end(last, self.confidence) >= self.limit)
        if not rising.any():
            return None
        soonest = max(now.step, round(float(lines.reach(self.limit)[rising].min())))
        text = f"logits of {_labels(now, rising)} will pass {self.limit:g} at about step {soonest}"
        return Alert(now.step, self.name, "warning", _heads(now, rising), text, soonest)


DEFAULT: tuple[Alarm, ...] = (NotFinite(), EntropyCollapse(), LogitGrowth(), NearUniform())
