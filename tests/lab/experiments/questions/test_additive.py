import pytest
import torch

from attentropy.lab.experiments.questions import additive
from attentropy.lab.harness.results import RunResults

SMALL = additive.AdditiveConfig(sizes=(1.0, 30.0), steps=2, batch=8)


def test_the_weights_are_those_of_the_additive_score():
    torch.manual_seed(0)
    model = additive.Matcher(4, normed=False)
    asked, items = torch.randn(3, 4), torch.randn(3, 5, 4)
    inside = model.query(asked)[:, None] + model.key(items)
    wanted = (inside.tanh() @ model.score.vector[0]).softmax(-1)
    weights, slope = model(asked, items)
    torch.testing.assert_close(weights, wanted)
    assert slope.item() == pytest.approx((1 / inside.cosh().square()).mean().item(), rel=1e-4)


def test_layer_norm_keeps_tanh_from_saturation():
    rows = RunResults(
        {**row, "condition": name, "seed": 0}
        for name in additive.conditions(SMALL)
        for row in additive.measure(SMALL, name, 0)
    )
    slopes = [
        rows.where(condition=n, size=30.0).mean("first slope") for n in additive.conditions(SMALL)
    ]
    assert slopes[0] < 0.1 < 0.4 < slopes[1]
    assert "the mean slope of tanh at first is" in additive.conclude(rows)[0]
