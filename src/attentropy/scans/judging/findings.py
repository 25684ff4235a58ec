"""What is notable in a scan: each head where it is at home, and its growth over all lengths."""

import math
from typing import Any

from attentropy.models.diagnose import Finding as Observed
from attentropy.models.diagnose import diagnose
from attentropy.models.record.rows import HeadRow
from attentropy.scans.judging import words
from attentropy.scans.schema import Finding, Layer, Measure, Scan

BLURRING = "blurring"


def diagnosed(scan: Scan) -> list[Finding]:
    """Findings at the trained length, and blurring over all lengths; most serious first."""
    home = words.home(scan)
    if home is None:
        return []
    everywhere = [row for measure in scan.measures for row in rows_of(measure, scan.layers)]
    found = diagnose(rows_of(home, scan.layers))
    over = [one for one in diagnose(everywhere) if one.name.startswith(BLURRING)]
    order = ("critical", "warning", "note")
    return sorted(
        [_finding(one, home) for one in [*found, *over]],
        key=lambda finding: order.index(finding.severity),
    )


def rows_of(measure: Measure, layers: list[Layer]) -> list[HeadRow]:
    """The rows that diagnose() takes, from the record, so that a resumed scan finds the same."""
    return [
        _row(measure, index, layer, head)
        for index, layer in enumerate(layers)
        for head in range(layer.heads)
    ]


def _row(measure: Measure, index: int, layer: Layer, head: int) -> HeadRow:
    known: dict[str, Any] = {
        key: math.nan if table[index][head] is None else table[index][head]
        for key, table in measure.statistics.items()
    }
    known["twin"] = int(known["twin"])
    name, _, call = layer.name.partition("#")
    return HeadRow(
        layer=name,
        index=index,
        call=int(call or 0),
        phase="forward",
        kind=layer.kind,
        head=head,
        heads=layer.heads,
        head_dim=layer.head_dim,
        causal=layer.causal,
        length=measure.length,
        rows=measure.tokens,
        collision=1 - known["gradient_flow"],
        lse=math.nan,
        mean_logit=math.nan,
        logit_range=math.nan,
        **known,
    )


def _finding(one: Observed, home: Measure) -> Finding:
    call = one.call
    if one.name.startswith(BLURRING):
        call = f"at.steer(model, scale=at.LogLengthFrom({home.length}))"
    severity: Any = one.severity
    return Finding(
        name=one.name,
        severity=severity,
        heads=one.heads,
        evidence=one.evidence,
        advice=one.advice,
        call=call,
    )
