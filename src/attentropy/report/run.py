"""A training run as the report shows it: plain numbers, wherever they were stored.

`metrics[name][step][layer][head]`; `losses` may be denser than the sampled `steps`.
"""

import math
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from attentropy.report.payload import rounded
from attentropy.scans.judging.statistics import STATISTICS
from attentropy.scans.schema import Head, Number, Table

NUMBERS = 150_000  # of all metrics in one page; denser runs are thinned, keeping first and last
LOSSES = 2_000

Severity = Literal["critical", "warning", "note"]


@dataclass(frozen=True)
class Alarm:
    """Something that rang at a step."""

    step: int
    name: str
    severity: Severity
    heads: list[Head]
    text: str


@dataclass(frozen=True)
class Run:
    """A run so far; `running` while more may come."""

    name: str
    layers: list[str]
    heads: list[int]
    steps: list[int]
    metrics: dict[str, list[Table]]
    losses: list[tuple[int, float]] = field(default_factory=list)
    alarms: list[Alarm] = field(default_factory=list)
    running: bool = False
    started: str = ""


def headline(run: Run) -> str:
    """One sentence: what rang, if anything did."""
    if not run.steps:
        return "Nothing is recorded yet."
    until = f"by step {run.steps[-1]:,}"
    serious = [alarm for alarm in run.alarms if alarm.severity != "note"]
    if not serious:
        return f"Attention is calm {until}."
    first = min(serious, key=lambda alarm: alarm.step)
    count = f"{len(serious):,} alarm{'s' if len(serious) > 1 else ''}"
    return f"{first.name.capitalize()} since step {first.step:,}; {count} {until}."


def run_payload(run: Run) -> dict[str, Any]:
    """What report/assets/run.js reads."""
    kept = _frames(run)
    return {
        "kind": "run",
        "statistics": [one._asdict() for one in STATISTICS if one.key in run.metrics],
        "run": {
            "name": run.name,
            "headline": headline(run),
            "started": run.started,
            "running": run.running,
            "layers": [
                {"name": name, "heads": heads}
                for name, heads in zip(run.layers, run.heads, strict=True)
            ],
            "steps": [run.steps[i] for i in kept],
            "metrics": {
                name: rounded([tables[i] for i in kept], 4) for name, tables in run.metrics.items()
            },
            "losses": rounded([list(point) for point in _thinned_losses(run.losses)], 5),
            "alarms": [asdict(alarm) for alarm in run.alarms],
        },
    }


def _frames(run: Run) -> list[int]:
    """Indices of the steps that a page of reasonable size can hold, first and last included."""
    each = max(1, sum(run.heads) * len(run.metrics))
    return thin(len(run.steps), max(2, NUMBERS // each))


def thin(count: int, most: int) -> list[int]:
    """At most `most` indices of range(count), evenly spaced, with both ends.

    >>> thin(10, 4)
    [0, 3, 6, 9]
    """
    if count <= most:
        return list(range(count))
    return [round(i * (count - 1) / (most - 1)) for i in range(most)]


def _thinned_losses(losses: list[tuple[int, float]]) -> list[tuple[int, Number]]:
    return [
        (losses[i][0], losses[i][1] if math.isfinite(losses[i][1]) else None)
        for i in thin(len(losses), LOSSES)
    ]
