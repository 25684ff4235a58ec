"""What a scan means: slopes and findings from its rows, and the one or two things to do."""

from attentropy.core.statistics import by_place
from attentropy.models.diagnose import Finding, Thresholds, blurring, by_severity, diagnose
from attentropy.models.slope import Slope, slopes
from attentropy.scans.judging import words
from attentropy.scans.schema import Advice, Measure, Scan

BLUR = 0.5  # median slope from which the scale should follow the length
WORSE = 1.02  # perplexity beyond the trained length over that at it
STEER = 'at.steer(model, at.Plan.load("plan.json"))'


def judge(scan: Scan) -> None:
    """Fill in the slopes, findings and advice of a scan from its rows and its plan."""
    scan.slopes = slopes_of(scan)
    scan.findings = diagnosed(scan)
    scan.advice = advise(scan)


def slopes_of(scan: Scan) -> list[list[Slope]]:
    """The slope of every head over all lengths, `[layer][head]`."""
    found = slopes(row for measure in scan.measures for row in measure.rows)
    places = by_place(scan.measures[0].rows) if scan.measures else []
    return [[found[row.layer, row.call, row.head] for row in heads] for heads in places]


def diagnosed(scan: Scan) -> list[Finding]:
    """Findings at the trained length, and blurring over all lengths; most serious first."""
    home = words.home(scan)
    if home is None:
        return []
    everywhere = [row for measure in scan.measures for row in measure.rows]
    over = blurring(everywhere, Thresholds(), reference=home.length)
    return by_severity([*diagnose(home.rows), *over])


def advise(scan: Scan) -> list[Advice]:
    """At most two pieces of advice; none if there is nothing to do."""
    if scan.plan is not None:
        return [_from_plan(scan)]
    trained = words.home(scan)
    slope = words.median_slope(scan)
    longer = [m for m in scan.measures if trained is not None and m.length > trained.length]
    if trained is None or slope is None or not longer or slope < BLUR:
        return []
    cost = _cost(trained, longer[-1])
    text = (
        f"Entropy grows with the length{cost}: try logits scaled with log n beyond "
        f"{trained.length:,} tokens."
    )
    if all(layer.head_dim == 0 for layer in scan.layers):  # only its softmax is seen
        by_hand = (
            " The model computes attention by hand, which cannot be steered: call "
            "F.scaled_dot_product_attention or attentropy.attend in it first."
        )
        return [Advice(text=text + by_hand, call="")]
    lengths = [trained.length, *(measure.length for measure in longer)]
    one_text = all(layer.kind == "self" for layer in scan.layers)
    by_command = " (attentropy scan --calibrate does it)" if one_text else ""
    return [
        Advice(text=text, call=f"at.steer(model, scale=at.LogLengthFrom({trained.length}))"),
        Advice(
            text=f"Or find each head's own scale and measure whether it helps{by_command}.",
            call=f"plan = at.calibrate(model, batches, lengths={lengths})\nat.steer(model, plan)",
        ),
    ]


def _cost(trained: Measure, longest: Measure) -> str:
    if trained.perplexity is None or longest.perplexity is None:
        return ""
    ratio = longest.perplexity / trained.perplexity
    if ratio < WORSE:
        return ", though the perplexity does not suffer yet"
    return f" and the perplexity with it ({ratio:.2f} times at {longest.length:,})"


def _from_plan(scan: Scan) -> Advice:
    plan = scan.plan
    assert plan is not None
    last = plan.effects[-1]
    before, after = last.perplexity_before, last.perplexity_after
    if before is None or after is None:
        text = f"Steer with the calibrated plan, which holds the {plan.hold}."
        return Advice(text=text, call=STEER)
    change = f"perplexity {before:.3g} becomes {after:.3g} at {last.length:,} tokens"
    if after >= before:
        text = f"Leave the scales as they are: calibrated, the {change}."
        return Advice(text=text, call="")
    return Advice(text=f"Steer with the calibrated plan: the {change}.", call=STEER)
