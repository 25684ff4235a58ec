"""Scans side by side, as the page shows them: what each head did, and how much it changed."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from attentropy.core.errors import ArgumentError
from attentropy.report.page import render
from attentropy.report.payload import DESCRIBED, SHOWN, rounded
from attentropy.scans.judging import words
from attentropy.scans.schema import Measure, Scan


class NamedScan(NamedTuple):
    """A scan, and the name that tells it from the others."""

    name: str
    scan: Scan


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


def comparison_page(scans: Sequence[NamedScan]) -> str:
    """Two scans or more as the text of one HTML file.

    Args:
        scans: in the order in which they are shown; the first is what others are compared with.
    """
    names = [one.name for one in scans]
    return render(
        comparison_payload(scans),
        title=f"{' · '.join(names)} · attention compared",
        summary=[f"{one.name}: {words.headline(one.scan)}" for one in scans],
    )


def comparison_payload(scans: Sequence[NamedScan]) -> dict[str, Any]:
    """What report/assets/comparison.js reads.

    Args:
        scans: two or more.
    """
    if len(scans) < 2:
        raise ArgumentError("scans", "two or more", len(scans))
    return {
        "kind": "comparison",
        "statistics": [DESCRIBED[name] for name in SHOWN],
        "scans": [_one(one) for one in scans],
    }


def unique_names(names: Sequence[str], folders: Sequence[str]) -> list[str]:
    """Names of scans: those of their models, or of their folders where models are called alike.

    Args:
        names: of the models.
        folders: that the scans are in.

    >>> unique_names(["gpt", "gpt", "bert"], ["before", "after", "x"])
    ['before', 'after', 'bert']
    >>> unique_names(["gpt", "gpt"], ["a", "a"])
    ['a', 'a (2)']
    """
    chosen = [
        folder if names.count(name) > 1 else name
        for name, folder in zip(names, folders, strict=True)
    ]
    before = [chosen[:i].count(name) for i, name in enumerate(chosen)]
    return [f"{name} ({n + 1})" if n else name for name, n in zip(chosen, before, strict=True)]


def common_length(scans: Sequence[Scan]) -> int | None:
    """The longest length that all of them have; None if they share none."""
    shared = set.intersection(*(set(scan.lengths) for scan in scans))
    return max(shared, default=None)


def head_changes(first: Scan, other: Scan, *, statistic: str = "entropy") -> list[HeadChange]:
    """How every head differs at the longest length both scans have, the largest change first.

    Empty if they share no length, or if their layers and heads are others.

    Args:
        first: what is compared with.
        other: the other scan.
        statistic: a name of the table of statistics.
    """
    length = common_length((first, other))
    if length is None or _shape(first) != _shape(other):
        return []
    a, b = (_at(scan, length).table(statistic) for scan in (first, other))
    found = [
        HeadChange(layer, head, before, after)
        for layer, rows in enumerate(zip(a, b, strict=True))
        for head, (before, after) in enumerate(zip(*rows, strict=True))
        if before is not None and after is not None
    ]
    return sorted(found, key=lambda one: -abs(one.change))


def _shape(scan: Scan) -> list[int]:
    return [layer.heads for layer in scan.layers]


def _at(scan: Scan, length: int) -> Measure:
    return next(measure for measure in scan.measures if measure.length == length)


def _one(named: NamedScan) -> dict[str, Any]:
    scan = named.scan
    return {
        "name": named.name,
        "model": scan.model.name,
        "created": scan.created,
        "headline": words.headline(scan),
        "tiles": [tile._asdict() for tile in words.tiles(scan)],
        "layers": [{"name": layer.place, "heads": layer.heads} for layer in scan.layers],
        "lengths": scan.lengths,
        "measures": [
            {
                "length": measure.length,
                "perplexity": rounded(measure.perplexity, 5),
                "statistics": {name: rounded(measure.table(name), 5) for name in SHOWN},
            }
            for measure in scan.measures
        ],
    }
