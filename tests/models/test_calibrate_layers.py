"""Plans of models that are made of attentropy.nn."""

import pytest
import torch

import attentropy as at
from attentropy.nn import GatedAttentionUnit, RotaryPositions
from tests.models.intercept.test_compute_steered import Two, X, causal


@pytest.mark.parametrize("method", ["empirical", "gaussian"])
def test_calibrate_holds_the_entropy(method):
    x = torch.randn(4, 128, 32)
    model = Two(causal(positions=RotaryPositions()))
    plain = model(X)
    plan = at.calibrate(model, [x], lengths=[16, 64, 128], method=method)
    assert set(plan.factors) == {"layers.0", "layers.1"}
    assert torch.equal(model(X), plain)
    first, *longer = plan.effects
    for effect in longer:
        assert effect.entropy_before > first.entropy_before + 0.2
        assert abs(effect.entropy_after - first.entropy_before) < 0.15
    handle = at.steer(model, plan)
    with torch.no_grad(), at.watch(model, keep="rows") as w:
        model(x)
    handle.undo()
    assert w.heads()[0].length == 128


def test_calibrate_says_that_there_is_no_entropy_to_hold():
    model = Two(lambda: GatedAttentionUnit(32, key_dim=16))
    with pytest.raises(
        at.models.watch.NothingRecorded, match="ReluSquared weights, which have no entropy"
    ):
        at.calibrate(model, [torch.randn(1, 16, 32)], lengths=[8, 16])
