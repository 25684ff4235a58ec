"""Alerts of one event in one line: an alarm that rings for several heads is one episode."""

from collections.abc import Iterable

import msgspec

from attentropy.core.notebook.words import plural
from attentropy.models.diagnose import ORDER, Severity
from attentropy.training.alarms import Alert
from attentropy.training.runstore import StoredRun
from attentropy.training.samples import Head

QUIET = 20
"""Samples without a further alert, after which the next one begins another episode."""


class Episode(msgspec.Struct, frozen=True, kw_only=True):
    """Alerts of one alarm that follow one another.

    Attributes:
        name: that of the alarm.
        severity: the highest severity of its alerts.
        first: the step of the first alert.
        last: the step of the last alert.
        alerts: the number of alerts.
        heads: all heads concerned, in the order of the alerts.
        text: what is wrong, in a sentence.
    """

    name: str
    severity: Severity
    first: int
    last: int
    alerts: int
    heads: tuple[Head, ...]
    text: str

    @property
    def steps(self) -> str:
        """When it rang, in words."""
        if self.first == self.last:
            return f"step {self.first}"
        return f"steps {self.first} to {self.last}"


def episodes(alerts: Iterable[Alert], *, apart: float) -> list[Episode]:
    """The alerts as episodes, in the order in which these began.

    Args:
        alerts: in the order of their steps.
        apart: number of steps after which an alert of the same alarm begins another episode.

    >>> growing = [Alert(n, "growth", "warning", ((0, n),), f"head {n} grows") for n in (1, 2, 9)]
    >>> [(one.steps, one.text) for one in episodes(growing, apart=5)]
    [('steps 1 to 2', 'head 1 grows; 1 more alert, 2 heads in all'), ('step 9', 'head 9 grows')]
    """
    groups: list[list[Alert]] = []
    latest: dict[str, list[Alert]] = {}
    for alert in alerts:
        group = latest.get(alert.name)
        if group is None or alert.step - group[-1].step > apart:
            group = latest[alert.name] = []
            groups.append(group)
        group.append(alert)
    return [_episode(group) for group in groups]


def episodes_of(run: StoredRun) -> list[Episode]:
    """The episodes of a run; the distance between steps separates them.

    Args:
        run: as read from its store.
    """
    known = max(run.total, len(run.steps), 2)
    spacing = (run.steps[-1] - run.steps[0]) / (known - 1) if run.steps else 0.0
    return episodes(run.alerts, apart=QUIET * max(1.0, spacing))


def _episode(group: list[Alert]) -> Episode:
    first, more = group[0], len(group) - 1
    heads = tuple(dict.fromkeys(head for alert in group for head in alert.heads))
    text = first.text
    if more:
        text += f"; {plural(more, 'more alert')}, {plural(len(heads), 'head')} in all"
    return Episode(
        name=first.name,
        severity=min((alert.severity for alert in group), key=ORDER.index),
        first=first.step,
        last=group[-1].step,
        alerts=len(group),
        heads=heads,
        text=text,
    )
