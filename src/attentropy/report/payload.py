"""Scan -> the numbers and sentences the page shows, rounded so that the page stays small."""

from typing import Any

from attentropy.report.predictions import predict
from attentropy.scans.judging import words
from attentropy.scans.judging.statistics import STATISTIC, STATISTICS
from attentropy.scans.schema import Measure, Scan

MAP_BUDGET = 500_000  # characters of attention maps in one page


def scan_payload(scan: Scan, other: Scan | None = None) -> dict[str, Any]:
    """What report/assets reads; `other` is the scan to compare with."""
    return {
        "kind": "scan",
        "statistics": [statistic._asdict() for statistic in STATISTICS],
        "scan": _one(scan, maps=True),
        "other": None if other is None else _one(other, maps=False),
    }


def _one(scan: Scan, *, maps: bool) -> dict[str, Any]:
    home = words.home(scan)
    return {
        "model": _plain(scan.model),
        "input": _plain(scan.input),
        "facts": _facts(scan),
        "headline": words.headline(scan),
        "sentences": words.sentences(scan),
        "tiles": [tile._asdict() for tile in words.tiles(scan)],
        "layers": [_plain(layer) for layer in scan.layers],
        "lengths": scan.lengths,
        "home": scan.measures.index(home) if home else 0,
        "measures": [_measure(measure) for measure in scan.measures],
        "slopes": rounded(scan.slopes, 4),
        "findings": [_plain(finding) for finding in scan.findings],
        "advice": [_plain(advice) for advice in scan.advice],
        "calibration": _plain(scan.calibration) if scan.calibration else None,
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
        "schema": f"{scan.schema} {scan.version}",
    }


def _measure(measure: Measure) -> dict[str, Any]:
    return {
        "length": measure.length,
        "sequences": measure.sequences,
        "tokens": measure.tokens,
        "seconds": round(measure.seconds, 3),
        "loss": rounded(measure.loss, 5),
        "perplexity": rounded(measure.perplexity, 5),
        "statistics": {
            key: rounded(table, 5) for key, table in measure.statistics.items() if key in STATISTIC
        },
        "profile": rounded(_plain(measure.profile), 4),
    }


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
    return {**_plain(scan.maps), "data": kept}


def _plain(part: Any) -> Any:
    from msgspec import to_builtins

    return to_builtins(part)


def rounded(value: Any, digits: int) -> Any:
    """`value` with every number in it to so many significant digits; not finite becomes None."""
    if isinstance(value, float):
        return float(f"{value:.{digits}g}") if value - value == 0 else None
    if isinstance(value, dict):
        return {key: rounded(item, digits) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item, digits) for item in value]
    return value
