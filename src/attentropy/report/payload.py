"""A scan as the page shows it: numbers and sentences, rounded so that the page stays small."""

from typing import Any

from msgspec import to_builtins

from attentropy.core.statistics import TABLE
from attentropy.models.plan import Plan
from attentropy.report.page import render
from attentropy.report.predictions import predict
from attentropy.report.text import text_payload
from attentropy.scans.judging import words
from attentropy.scans.schema import PLAN, Measure, Scan

SHOWN = tuple(name for name, one in TABLE.items() if one.shown)
DESCRIBED = {name: {**to_builtins(one), "shades": one.shades} for name, one in TABLE.items()}
MAP_BUDGET = 500_000  # characters of attention maps in one page


def scan_page(scan: Scan, other: Scan | None = None, *, live: str = "") -> str:
    """The report of a scan, as the text of one HTML file.

    Args:
        scan: what was measured.
        other: another scan to compare it with.
        live: the address that says when the scan last changed, on a page that is served.
    """
    summary = [words.headline(scan), *words.sentences(scan)]
    title = f"{scan.model.name} · attention scan"
    return render(scan_payload(scan, other), title=title, summary=summary, live=live)


def scan_payload(scan: Scan, other: Scan | None = None) -> dict[str, Any]:
    """What report/assets reads.

    Args:
        scan: what was measured.
        other: another scan to compare it with.
    """
    return {
        "kind": "scan",
        "statistics": [DESCRIBED[name] for name in SHOWN],
        "scan": _one(scan, maps=True),
        "other": None if other is None else _one(other, maps=False),
        "text": None if scan.text is None else text_payload(scan.text, name=scan.model.name),
    }


def _one(scan: Scan, *, maps: bool) -> dict[str, Any]:
    home = words.home(scan)
    return {
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
        "measures": [_measure(measure) for measure in scan.measures],
        "slopes": rounded(to_builtins(scan.slopes), 4),
        "findings": to_builtins(scan.findings),
        "advice": to_builtins(scan.advice),
        "verdict": None if scan.verdict is None else rounded(to_builtins(scan.verdict), 5),
        "remedies": [
            {**rounded(to_builtins(one), 5), "helps": one.change.helps} for one in scan.remedies
        ],
        "plan": None if scan.plan is None else _plan(scan.plan, scan),
        "predictions": rounded(predict(scan), 4),
        "maps": _maps(scan) if maps else None,
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


def _measure(measure: Measure) -> dict[str, Any]:
    return {
        "length": measure.length,
        "sequences": measure.sequences,
        "tokens": measure.tokens,
        "seconds": round(measure.seconds, 3),
        "loss": rounded(measure.loss, 5),
        "perplexity": rounded(measure.perplexity, 5),
        "loss_by_position": rounded(to_builtins(measure.loss_by_position), 5),
        "statistics": {name: rounded(measure.table(name), 5) for name in SHOWN},
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


def _maps(scan: Scan) -> dict[str, Any] | None:
    """The maps that fit the budget, heads with findings first."""
    if scan.maps is None:
        return None
    first = [f"{layer}.{head}" for finding in scan.findings for layer, head in finding.heads]
    order = dict.fromkeys([*first, *scan.maps.data])
    kept: dict[str, str] = {}
    room = MAP_BUDGET
    for key in order:
        text = scan.maps.data.get(key, "")
        if text and len(text) <= room:
            kept[key] = text
            room -= len(text)
    return {**to_builtins(scan.maps), "data": kept}


def rounded(value: Any, digits: int) -> Any:
    """`value` with every number in it to so many significant digits; not finite becomes None.

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
