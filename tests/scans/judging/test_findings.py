import math

import pytest

from attentropy.scans.judging import words
from attentropy.scans.judging.advice import advise
from attentropy.scans.judging.findings import diagnosed, rows_of
from tests.report.synthetic import make_scan


def judged(**changes):
    """A scan of 1 x 2 heads at 64 and 256 whose tables diagnose() can read, head 0 changed."""
    scan = make_scan(layers=1, heads=2, lengths=(64, 256), trained=64, maps=0, calibrate=False)
    for measure in scan.measures:
        visible = measure.length / 2
        calm = {
            "entropy": 2.0,
            "normalized_entropy": 0.5,
            "perplexity": 7.4,
            "sparsity": 0.5,
            "max_logit": 6.0,
            "top_probability": 0.4,
            "sink_mass": 0.05,
            "output_norm": 1.0,
            "gradient_flow": 0.7,
            "noise_robustness": 1.4,
            "distance": 9.0,
            "previous_share": 0.1,
            "spread": 2.0,
            "received_concentration": 0.05,
            "deficit": 1.5,
            "visible": visible,
            "positional": 0.3,
            "twin": 1.0,
            "likeness": 0.2,
        }
        for key, value in calm.items():
            change = changes.get(key, value)
            own = change(measure.length) if callable(change) else change
            measure.statistics[key] = [[own, value]]
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


def test_what_is_missing_in_the_record_is_not_a_number_in_the_row():
    scan = judged(distance=None)
    rows = rows_of(scan.measures[0], scan.layers)
    assert math.isnan(rows[0].distance)
    assert rows[1].distance == 9.0
    assert rows[0].twin == 1


def test_advice_names_the_calls_and_the_cost():
    scan = make_scan(lengths=(64, 128, 512), trained=128, calibrate=False)
    scan.slopes = [[0.9] * 8] * 6
    first, second = advise(scan)
    assert first.call == "at.steer(model, scale=at.LogLengthFrom(128))"
    assert "times at 512" in first.text
    assert second.call.startswith("plan = at.calibrate(model, batches, lengths=[128, 512])")


def test_calls_that_would_be_refused_are_not_advised():
    scan = make_scan(lengths=(64, 128, 512), trained=128, calibrate=False)
    scan.slopes = [[0.9] * 8] * 6
    for layer in scan.layers:
        layer.head_dim = 0  # as that of attention which is computed by hand
    (advice,) = advise(scan)
    assert "computes attention by hand, which cannot be steered" in advice.text
    assert advice.call == ""


def test_nothing_to_do_is_no_advice():
    scan = make_scan(calibrate=False)
    scan.slopes = [[0.1] * 8] * 6
    assert advise(scan) == []
    scan = make_scan(lengths=(64, 128), trained=128, calibrate=False)
    scan.slopes = [[0.9] * 8] * 6
    assert advise(scan) == []  # nothing is known beyond the trained length


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (0.5, "Steer with"),
        (0.999, "Steer with"),
        (1.0, "Leave the scales"),
        (1.001, "Leave the scales"),
        (1.9, "Leave the scales"),
        (9.0, "Leave the scales"),
    ],
)
def test_calibration_is_advised_only_if_it_helps(change, said):
    scan = make_scan()
    last = scan.calibration.rows[-1]
    last.perplexity_after = change * last.perplexity_before
    (advice,) = advise(scan)
    assert advice.text.startswith(said)
    assert bool(advice.call) is (said == "Steer with")


def test_home_is_named_by_the_trained_length():
    assert words.home(judged()).length == 64
