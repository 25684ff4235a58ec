"""A training run as the page shows it."""

import math
from typing import Any

from msgspec import to_builtins

from attentropy.report.page import render
from attentropy.report.payload import DESCRIBED, SHOWN, rounded
from attentropy.training.runstore import StoredRun

NUMBERS = 150_000  # of all metrics in one page; denser runs are thinned, keeping first and last
LOSSES = 2_000


def run_page(run: StoredRun, *, live: str = "") -> str:
    """The report of a training run, as the text of one HTML file.

    Args:
        run: what was recorded.
        live: the address that gives its fresh payload, on a page that is served.
    """
    title = f"{run.name} · training run"
    return render(run_payload(run), title=title, summary=[headline(run)], live=live)


def headline(run: StoredRun) -> str:
    """One sentence: what rang, if anything did."""
    if not run.steps:
        return "Nothing is recorded yet."
    until = f"by step {run.steps[-1]:,}"
    serious = [alert for alert in run.alerts if alert.severity != "note"]
    if not serious:
        return f"Attention is calm {until}."
    first = min(serious, key=lambda alert: alert.step)
    count = f"{len(serious):,} alarm{'s' if len(serious) > 1 else ''}"
    return f"{first.name.capitalize()} since step {first.step:,}; {count} {until}."


def run_payload(run: StoredRun) -> dict[str, Any]:
    """What report/assets/run.js reads."""
    kept = _frames(run)
    shown = [name for name in SHOWN if name in run.metrics]
    return {
        "kind": "run",
        "statistics": [DESCRIBED[name] for name in shown],
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
            "metrics": {name: rounded([run.metrics[name][i] for i in kept], 4) for name in shown},
            "losses": rounded([list(point) for point in _thinned_losses(run.losses)], 5),
            "alerts": to_builtins(run.alerts),
        },
    }


def _frames(run: StoredRun) -> list[int]:
    """Indices of the steps that a page of reasonable size can hold, first and last included."""
    each = max(1, sum(run.heads) * len(SHOWN))
    return thin(len(run.steps), max(2, NUMBERS // each))


def thin(count: int, most: int) -> list[int]:
    """At most `most` indices of range(count), evenly spaced, with both ends.

    Args:
        count: the number of indices.
        most: the number of them that are kept at most.

    >>> thin(10, 4)
    [0, 3, 6, 9]
    """
    if count <= most:
        return list(range(count))
    return [round(i * (count - 1) / (most - 1)) for i in range(most)]


def _thinned_losses(losses: list[tuple[int, float]]) -> list[tuple[int, float | None]]:
    return [
        (losses[i][0], losses[i][1] if math.isfinite(losses[i][1]) else None)
        for i in thin(len(losses), LOSSES)
    ]
