import math

import pytest

from attentropy.report import predictions
from attentropy.theory import gaussian
from tests.report.synthetic import change_heads, make_scan


@pytest.mark.parametrize("n", [40.0, 500.0])
@pytest.mark.parametrize("spread", [0.3, 1.1, 2.6, 6.0])
def test_interpolation_follows_the_exact_theory(n, spread):
    exact = float(gaussian.expected_entropy(n, spread))
    assert predictions.expected_entropy(n, spread) == pytest.approx(exact, abs=0.01)
    assert predictions.effective_spread(n, exact) == pytest.approx(spread, rel=0.03, abs=0.03)


def test_every_rule_agrees_with_the_measure_at_the_reference():
    scan = make_scan(layers=2, heads=3, lengths=(64, 128, 256), trained=128)
    found = predictions.predict(scan)
    measured = scan.measures[1].table("entropy")
    for layer in range(2):
        for head in range(3):
            for rule in range(3):
                got = found["curves"][layer][head][rule][1]
                assert got == pytest.approx(measured[layer][head], abs=0.03)


def test_a_constant_scale_blurs_and_holding_holds():
    scan = make_scan(layers=1, heads=1, lengths=(128, 1024), trained=128)
    change_heads(scan.measures[0], entropy=2.5)
    constant, growing, holding, _ = predictions.predict(scan)["curves"][0][0]
    assert constant[1] - constant[0] > 0.8
    assert growing[1] < constant[1]
    assert abs(holding[1] - holding[0]) < 0.5 * (constant[1] - constant[0])


def test_a_head_without_a_measure_has_no_prediction():
    scan = make_scan(layers=1, heads=1)
    for measure in scan.measures:
        change_heads(measure, entropy=math.nan)
    assert predictions.predict(scan)["curves"][0][0][0] == [None] * 4


def test_uniform_is_the_mean_logarithm_of_the_visible_keys():
    scan = make_scan(layers=1, heads=1, lengths=(64,))
    logs = [math.log(v) for v in scan.measures[0].profiles[0].visible]
    assert predictions.predict(scan)["uniform"][0][0] == pytest.approx(sum(logs) / len(logs))


def test_a_layer_with_a_window_is_predicted_from_the_keys_that_it_sees():
    scan = make_scan(layers=2, heads=1, lengths=(64, 512), trained=64)
    for measure in scan.measures:
        measure.profiles[1].visible = [min(seen, 32.0) for seen in measure.profiles[1].visible]
    found = predictions.predict(scan)
    whole, windowed = found["uniform"]
    assert whole[1] - whole[0] == pytest.approx(math.log(8), abs=0.1)
    assert windowed[1] - windowed[0] < 0.6
