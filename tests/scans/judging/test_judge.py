import math

import msgspec
import pytest

import attentropy as at
from attentropy.models.slope import Slope, slopes
from attentropy.scans.judging.judge import STEER, advise, diagnosed, judge, slopes_of
from tests.report.synthetic import change_heads, make_scan

CALM = {
    "entropy": 2.0, "normalized_entropy": 0.5, "perplexity": 7.4, "density": 0.5,
    "max_logit": 6.0, "top_probability": 0.4, "sink_mass": 0.05, "output_norm": 1.0,
    "gradient_flow": 0.7, "noise_robustness": 1.4, "distance": 9.0, "previous_share": 0.1,
    "spread": 2.0, "received_concentration": 0.05, "deficit": 1.5, "positional": 0.3,
    "likeness": 0.2, "twin": 1,
}  # fmt: skip


def judged(**changes):
    """A scan of 1 x 2 calm heads at 64 and 256; head 0 is changed, by functions of the length."""
    scan = make_scan(layers=1, heads=2, lengths=(64, 256), trained=64, maps=0, calibrate=False)
    for measure in scan.measures:
        change_heads(measure, **CALM)
        own = {name: new(measure.length) for name, new in changes.items()}
        measure.rows[0] = msgspec.structs.replace(measure.rows[0], **own)
    return scan


def sloped(scan, value):
    scan.slopes = [[Slope(value)] * len(layer) for layer in scan.slopes]
    return scan


def names(scan):
    return [(finding.name, finding.severity) for finding in diagnosed(scan)]


def test_calm_heads_have_no_findings():
    assert names(judged()) == []


def test_findings_are_made_where_the_model_is_at_home():
    found = diagnosed(judged(max_logit=lambda n: 100.0 if n == 64 else 1.0))
    assert [finding.heads for finding in found] == [[(0, 0)]]
    assert found[0].severity == "critical"
    assert names(judged(max_logit=lambda n: 100.0 if n == 256 else 1.0)) == []


def test_blurring_is_judged_over_all_lengths_and_names_the_trained_one():
    scan = judged(entropy=lambda n: 0.5 + math.log(n / 64))
    found = diagnosed(scan)
    assert [finding.name for finding in found] == ["blurring with length"]
    assert found[0].call == "at.steer(model, scale=at.LogLengthFrom(64))"


def test_a_scan_judges_as_diagnose_does_from_the_rows_in_its_file():
    scan = judged(sink_mass=lambda n: 0.9, entropy=lambda n: 0.5 + math.log(n / 64))
    judge(scan)
    assert [f.name for f in scan.findings] == ["blurring with length", "sink"]
    assert [f for f in scan.findings if f.name == "sink"] == at.diagnose(scan.measures[0].rows)
    rows = [row for measure in scan.measures for row in measure.rows]
    assert scan.slopes == [list(slopes(rows).values())] == slopes_of(scan)
    assert scan.slopes[0][0].value == pytest.approx(1.0)
    assert scan.slopes[0][1].value == pytest.approx(0.0)


def test_a_scan_without_measures_has_nothing_to_say():
    scan = judged()
    scan.measures = []
    judge(scan)
    assert scan.slopes == scan.findings == scan.advice == []


def test_advice_names_the_calls_and_the_cost():
    scan = make_scan(lengths=(64, 128, 512), trained=128, calibrate=False)
    sloped(scan, 0.9)
    first, second = advise(scan)
    assert first.call == "at.steer(model, scale=at.LogLengthFrom(128))"
    assert "times at 512" in first.text
    assert second.call.startswith("plan = at.calibrate(model, batches, lengths=[128, 512])")


def test_calls_that_would_be_refused_are_not_advised():
    scan = make_scan(lengths=(64, 128, 512), trained=128, calibrate=False)
    sloped(scan, 0.9)
    for measure in scan.measures:  # as attention that is computed by hand
        change_heads(measure, head_dim=0)
    (advice,) = advise(scan)
    assert "computes attention by hand, which cannot be steered" in advice.text
    assert advice.call == ""


def test_nothing_to_do_is_no_advice():
    scan = make_scan(calibrate=False)
    sloped(scan, 0.1)
    assert advise(scan) == []
    scan = make_scan(lengths=(64, 128), trained=128, calibrate=False)
    sloped(scan, 0.9)
    assert advise(scan) == []  # nothing is known beyond the trained length


def test_heads_that_a_window_limits_are_no_reason_to_steer():
    scan = make_scan(lengths=(64, 128, 512), trained=128, calibrate=False)
    scan.slopes = [[Slope(1.0, "visible")] * 8 for _ in range(6)]
    assert advise(scan) == []


@pytest.mark.parametrize(
    ("factor", "said"),
    [
        (0.5, "Steer with"),
        (0.999, "Steer with"),
        (1.0, "Leave the scales"),
        (1.001, "Leave the scales"),
        (1.5, "Leave the scales"),
        (9.0, "Leave the scales"),
    ],
)
def test_calibration_is_advised_only_if_it_helps(factor, said):
    scan = make_scan()
    *before, last = scan.plan.effects
    last = msgspec.structs.replace(last, perplexity_after=factor * last.perplexity_before)
    scan.plan = msgspec.structs.replace(scan.plan, effects=(*before, last))
    (advice,) = advise(scan)
    assert advice.text.startswith(said)
    assert advice.call == (STEER if said == "Steer with" else "")


def test_a_plan_without_a_perplexity_is_offered_for_what_it_holds():
    scan = make_scan()
    effects = [
        msgspec.structs.replace(effect, perplexity_before=None, perplexity_after=None)
        for effect in scan.plan.effects
    ]
    scan.plan = msgspec.structs.replace(scan.plan, effects=tuple(effects))
    (advice,) = advise(scan)
    assert advice.text == "Steer with the calibrated plan, which holds the entropy."
