"""The one or two things to do about a scan, each with the exact call."""

from attentropy.scans.judging import words
from attentropy.scans.schema import Advice, Measure, Scan

BLUR = 0.5  # median slope from which the scale should follow the length
WORSE = 1.02  # perplexity beyond the trained length over that at it


def advise(scan: Scan) -> list[Advice]:
    """At most two pieces of advice; none if there is nothing to do."""
    if scan.calibration is not None:
        return [_from_calibration(scan)]
    trained = words.home(scan)
    slope = words.median_of(scan.slopes)
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


def _from_calibration(scan: Scan) -> Advice:
    found = scan.calibration
    assert found is not None
    last = found.rows[-1]
    before, after = last.perplexity_before, last.perplexity_after
    if before is None or after is None:
        text = f"Steer with the calibrated plan, which holds the {found.hold}."
        return Advice(text=text, call=found.call)
    change = f"perplexity {before:.3g} becomes {after:.3g} at {last.length:,} tokens"
    if after >= before:
        text = f"Leave the scales as they are: calibrated, the {change}."
        return Advice(text=text, call="")
    return Advice(text=f"Steer with the calibrated plan: the {change}.", call=found.call)
