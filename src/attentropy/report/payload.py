"""A scan as the page shows it: numbers and sentences, rounded so that the page stays small."""

from collections.abc import Sequence
from typing import Any

from msgspec import to_builtins

from attentropy.core.statistic import Statistic
from attentropy.core.statistics import TABLE
from attentropy.models.plan import Plan
from attentropy.report.findings.texts import explained
from attentropy.report.page import inline_json, render, size_of
from attentropy.report.predictions import predict
from attentropy.report.text import fitted, text_payload
from attentropy.scans.judging import words
from attentropy.scans.schema import PLAN, Measure, Scan

SHOWN = tuple(name for name, one in TABLE.items() if one.shown)
SLOPE = Statistic(
    name="slope",
    symbol="dH / d log n",
    label="Slope of entropy",
    formula="dH / d log n",
    meaning="How entropy grows with the length n of the text: 0 is invariant, 1 spreads over all "
    "keys. The same at every length.",
    low="falls",
    high="spreads",
)
DESCRIBED = {name: {**to_builtins(one), "shades": one.shades} for name, one in TABLE.items()}
ALL_DESCRIBED = [*DESCRIBED.values(), {**to_builtins(SLOPE), "shades": SLOPE.shades}]
MAP_BUDGET = 500_000  # characters of attention maps in one page
PAGE = 1_950_000  # characters of a page, of which maps and the text get what is left
TEXT_SHARE = 0.55  # of what is left


def scan_page(
    scan: Scan, other: Scan | None = None, *, names: Sequence[str] = (), live: str = ""
) -> str:
    """The report of a scan, as the text of one HTML file.

    Args:
        scan: what was measured.
        other: another scan to compare it with.
        names: of the two scans, where their models have the same name; by default those of the
            models, with the times of the scans if the names are equal.
        live: the address that says when the scan last changed, on a page that is served.
    """
    summary = [words.headline(scan), *words.sentences(scan)]
    title = f"{scan.model.name} · attention scan"
    payload = scan_payload(scan, other, names=names)
    return render(payload, title=title, summary=summary, live=live)


def scan_payload(
    scan: Scan, other: Scan | None = None, *, names: Sequence[str] = ()
) -> dict[str, Any]:
    """What report/assets reads.

    Args:
        scan: what was measured.
        other: another scan to compare it with.
        names: of the two scans, where their models have the same name.
    """
    both = [scan] if other is None else [scan, other]
    folders = names or [f"{one.model.name}, {one.created}" for one in both]
    called = unique_names([one.model.name for one in both], folders)
    found: dict[str, Any] = {
        "kind": "scan",
        "statistics": ALL_DESCRIBED,
        "explained": explained(finding.name for finding in scan.findings),
        "scan": _one(scan, called[0]),
        "other": None if other is None else _one(other, called[1]),
        "text": None,
    }
    room = PAGE - size_of(found)
    if scan.text is not None:
        text = fitted(scan.text, room=round(TEXT_SHARE * room))
        found["text"] = text_payload(text, name=scan.model.name)
        room -= len(inline_json(found["text"]))
    found["scan"]["maps"] = _maps(scan, room=min(MAP_BUDGET, room))
    return found


def unique_names(names: Sequence[str], folders: Sequence[str]) -> list[str]:
    """Names of scans: those of their models, or of their folders where models have the same name.

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


def _one(scan: Scan, name: str) -> dict[str, Any]:
    home = words.home(scan)
    return {
        "name": name,
        "model": to_builtins(scan.model),
        "input": to_builtins(scan.input),
        "facts": _facts(scan),
        "headline": words.headline(scan),
        "sentences": words.sentences(scan),
        "tiles": [tile._asdict() for tile in words.tiles(scan)],
        "layers": [
            {"name": layer.place, "heads": layer.heads, "causal": layer.causal}
            for layer in scan.layers
        ],
        "lengths": scan.lengths,
        "home": scan.measures.index(home) if home else 0,
        "measures": [_measure(measure, scan) for measure in scan.measures],
        "slopes": rounded(to_builtins(scan.slopes), 4),
        "findings": to_builtins(scan.findings),
        "advice": to_builtins(scan.advice),
        "verdict": None if scan.verdict is None else rounded(to_builtins(scan.verdict), 5),
        "remedies": [
            {**rounded(to_builtins(one), 5), "helps": one.change.helps} for one in scan.remedies
        ],
        "coverage": to_builtins(scan.coverage),
        "plan": None if scan.plan is None else _plan(scan.plan, scan),
        "predictions": rounded(predict(scan), 4),
        "maps": None,
    }


def _facts(scan: Scan) -> dict[str, Any]:
    return {
        "attentropy": scan.attentropy,
        "torch": scan.torch,
        "created": scan.created,
        "seconds": scan.seconds,
        "threads": scan.threads,
        "command": scan.command,
        "call": scan.call,
        "complete": scan.complete,
        "schema": f"attentropy.scan {scan.version}",
    }


def tables(measure: Measure, scan: Scan) -> dict[str, Any]:
    """Every statistic of every head, by name, layer and head; the slopes of the scan with them.

    Args:
        measure: of one length.
        scan: that has it.
    """
    slopes = [[slope.value for slope in layer] for layer in scan.slopes]
    found = {name: rounded(measure.table(name), 5) for name in TABLE}
    return found | ({SLOPE.name: rounded(slopes, 4)} if slopes else {})


def _measure(measure: Measure, scan: Scan) -> dict[str, Any]:
    return {
        "length": measure.length,
        "sequences": measure.sequences,
        "tokens": measure.tokens,
        "seconds": round(measure.seconds, 3),
        "loss": rounded(measure.loss, 5),
        "perplexity": rounded(measure.perplexity, 5),
        "loss_by_position": rounded(to_builtins(measure.loss_by_position), 5),
        "statistics": tables(measure, scan),
        "profiles": rounded(to_builtins(measure.profiles), 4),
    }


def _plan(plan: Plan, scan: Scan) -> dict[str, Any]:
    index = {layer.layer: i for i, layer in enumerate(scan.layers)}
    return {
        "reference": plan.reference,
        "hold": plan.hold,
        "call": _plan_call(scan),
        "effects": rounded(to_builtins(plan.effects), 5),
        "unheld": [(index[layer], head) for layer, head in plan.unheld if layer in index],
    }


def _plan_call(scan: Scan) -> str:
    """The call that applies the plan; "" if it was not tried, or does not help."""
    helpful = (r.call for r in scan.remedies if r.name == PLAN and r.change.helps)
    return next(helpful, "")


def _maps(scan: Scan, *, room: int) -> dict[str, Any] | None:
    """The maps that have room, heads with findings first."""
    if scan.maps is None:
        return None
    first = [f"{layer}.{head}" for finding in scan.findings for layer, head in finding.heads]
    order = dict.fromkeys([*first, *scan.maps.data])
    kept: dict[str, str] = {}
    for key in order:
        text = scan.maps.data.get(key, "")
        if text and len(text) <= room:
            kept[key] = text
            room -= len(text)
    return {**to_builtins(scan.maps), "data": kept}


def rounded(value: Any, digits: int) -> Any:
    """`value` with every number rounded to this many significant digits; not finite becomes None.

    Args:
        value: numbers in lists and dictionaries.
        digits: the number of significant digits.
    """
    if isinstance(value, float):
        return float(f"{value:.{digits}g}") if value - value == 0 else None
    if isinstance(value, dict):
        return {key: rounded(item, digits) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item, digits) for item in value]
    return value
