"""A training run as the page shows it."""

import math
from collections.abc import Callable
from typing import Any

from msgspec import to_builtins

from attentropy.core.notebook.words import plural
from attentropy.report.findings.texts import explained
from attentropy.report.page import render
from attentropy.report.payload import DESCRIBED, SHOWN, rounded
from attentropy.training.episodes import episodes_of
from attentropy.training.runstore import StoredRun

NUMBERS = 150_000  # of all metrics in one page; of a longer run blocks of samples are read
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
    serious = [one for one in episodes_of(run) if one.severity != "note"]
    if not serious:
        return f"Attention is calm {until}."
    first = min(serious, key=lambda one: one.first)
    count = plural(len(serious), "alarm")
    return f"{first.name.capitalize()} since step {first.first:,}; {count} {until}."


def run_payload(run: StoredRun) -> dict[str, Any]:
    """What report/assets/run.js reads."""
    kept = _frames(run)
    shown = [name for name in SHOWN if name in run.metrics]
    return {
        "kind": "run",
        "explained": explained(one.name for one in run.alerts),
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
            "total": max(run.total, len(run.steps)),
            "gaps": [list(gap) for gap in run.gaps],
            "metrics": {name: rounded([run.metrics[name][i] for i in kept], 4) for name in shown},
            "lows": {name: rounded(_extremes(run, name, kept, min), 4) for name in shown},
            "highs": {name: rounded(_extremes(run, name, kept, max), 4) for name in shown},
            "losses": rounded([list(point) for point in thinned_losses(run.losses)], 5),
            "alerts": to_builtins(run.alerts),
            "episodes": to_builtins(episodes_of(run)),
        },
    }


def _extremes(
    run: StoredRun, name: str, kept: list[int], of: Callable[[list[float]], float]
) -> list[float]:
    """The least or largest head of each frame, of every sample in it where the run says so."""
    known = (run.lows if of is min else run.highs).get(name)
    if known is not None:
        return [known[i] for i in kept]
    heads = [[n for layer in run.metrics[name][i] for n in layer] for i in kept]
    return [of([n for n in frame if not math.isnan(n)] or [math.nan]) for frame in heads]


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


def thinned_losses(losses: list[tuple[int, float]]) -> list[tuple[int, float | None]]:
    """As many losses as a curve can show; not finite is None.

    Args:
        losses: (step, loss) each.
    """
    return [
        (losses[i][0], losses[i][1] if math.isfinite(losses[i][1]) else None)
        for i in thin(len(losses), LOSSES)
    ]
