"""Scans and runs side by side, as the page shows them: what each head did, and how it changed."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from attentropy.core.errors import ArgumentError
from attentropy.report.page import render
from attentropy.report.payload import ALL_DESCRIBED, rounded, tables
from attentropy.report.run import NUMBERS, headline, thin, thinned_losses
from attentropy.scans.judging import words
from attentropy.scans.schema import Measure, Scan
from attentropy.training.runstore import StoredRun


class NamedScan(NamedTuple):
    """A scan, and the name that tells it from the others."""

    name: str
    scan: Scan


class NamedRun(NamedTuple):
    """A training run, and the name that tells it from the others."""

    name: str
    run: StoredRun


Compared = NamedScan | NamedRun


class HeadChange(NamedTuple):
    """How a statistic of one head differs between two scans."""

    layer: int
    head: int
    before: float
    after: float

    @property
    def change(self) -> float:
        """after - before."""
        return self.after - self.before


def comparison_page(scans: Sequence[Compared]) -> str:
    """Two scans or runs, or more, as the text of one HTML file.

    Args:
        scans: in the order in which they are shown; the first is what others are compared with.
    """
    return render(
        comparison_payload(scans),
        title=f"{' · '.join(one.name for one in scans)} · attention compared",
        summary=[f"{one.name}: {_headline(one)}" for one in scans],
    )


def comparison_payload(scans: Sequence[Compared]) -> dict[str, Any]:
    """What report/assets/comparison.js reads.

    Args:
        scans: two or more scans or runs.
    """
    if len(scans) < 2:
        raise ArgumentError("scans", "two or more", len(scans))
    return {
        "kind": "comparison",
        "statistics": ALL_DESCRIBED,
        "entries": [
            _scan(one) if isinstance(one, NamedScan) else _run(one, most=NUMBERS // len(scans))
            for one in scans
        ],
    }


def common_length(scans: Sequence[Scan]) -> int | None:
    """The longest length that all of them have; None if they share none."""
    shared = set.intersection(*(set(scan.lengths) for scan in scans)) if scans else set()
    return max(shared, default=None)


def head_changes(
    first: Scan | StoredRun, other: Scan | StoredRun, *, statistic: str = "entropy"
) -> list[HeadChange]:
    """How every head differs, the largest change first.

    Scans are compared at the longest length that both have, a run by its last sample. Empty if
    scans share no length, if a run has no sample, or if layers and heads differ.

    Args:
        first: the scan or run to compare with.
        other: the other scan or run.
        statistic: a name of the table of statistics.
    """
    length = common_length([one for one in (first, other) if isinstance(one, Scan)])
    a, b = (_table(one, length, statistic) for one in (first, other))
    if [len(row) for row in a] != [len(row) for row in b]:
        return []
    found = [
        HeadChange(layer, head, before, after)
        for layer, rows in enumerate(zip(a, b, strict=True))
        for head, (before, after) in enumerate(zip(*rows, strict=True))
        if before is not None and after is not None and math.isfinite(after - before)
    ]
    return sorted(found, key=lambda one: -abs(one.change))


def _table(
    entry: Scan | StoredRun, length: int | None, statistic: str
) -> Sequence[Sequence[float | None]]:
    """The numbers by layer and head, at a length or of the last sample; empty if there are none."""
    if isinstance(entry, StoredRun):
        found = entry.metrics.get(statistic)
        return found[-1] if found else []
    return [] if length is None else _at(entry, length).table(statistic)


def _at(scan: Scan, length: int) -> Measure:
    return next(measure for measure in scan.measures if measure.length == length)


def _headline(entry: Compared) -> str:
    return words.headline(entry.scan) if isinstance(entry, NamedScan) else headline(entry.run)


def _scan(named: NamedScan) -> dict[str, Any]:
    scan = named.scan
    return {
        "name": named.name,
        "headline": words.headline(scan),
        "tiles": [tile._asdict() for tile in words.tiles(scan)],
        "layers": [{"name": layer.place, "heads": layer.heads} for layer in scan.layers],
        "lengths": scan.lengths,
        "measures": [
            {
                "perplexity": rounded(measure.perplexity, 5),
                "statistics": tables(measure, scan),
            }
            for measure in scan.measures
        ],
    }


def _run(named: NamedRun, *, most: int) -> dict[str, Any]:
    run = named.run
    each = max(1, sum(run.heads) * len(run.metrics))
    kept = thin(len(run.steps), max(2, most // each))
    return {
        "name": named.name,
        "headline": headline(run),
        "tiles": [],
        "layers": [
            {"name": name, "heads": heads}
            for name, heads in zip(run.layers, run.heads, strict=True)
        ],
        "steps": [run.steps[i] for i in kept],
        "measures": [
            {"statistics": {name: rounded(table[i], 5) for name, table in run.metrics.items()}}
            for i in kept
        ],
        "losses": rounded([list(point) for point in thinned_losses(run.losses)], 5),
    }
