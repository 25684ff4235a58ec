"""AdaptiveScale reaches its target from far away, and says so where it cannot."""

import logging
import math
import re

import pytest
import torch

import attentropy as at
from attentropy.core.results import Stats

ROWS, KEYS = 8, 256
STARTS = torch.tensor([-6.9, -4.0, -1.5, -0.2, 0.2, 1.5, 4.0, 6.9])


def gaussian():
    return torch.randn(ROWS, KEYS)


def planted():
    scores = torch.randn(ROWS, KEYS)
    scores[:, 3] = 6.0
    return scores


def sharply_planted():
    scores = 0.1 * torch.randn(ROWS, KEYS)
    scores[:, 3] = 6.0
    return scores


def bounded():
    return 2 * torch.rand(ROWS, KEYS) - 1


def entropy(scores, gain):
    log_p = (gain * scores.double() / ROWS**0.5).log_softmax(-1)
    return float(-(log_p.exp() * log_p).sum(-1).mean())


def solution(scores, target):
    low, high = -20.0, 20.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if entropy(scores, math.exp(middle)) > target else (low, middle)
    return low


def measure(scores, rule, heads):
    """q is the identity, so that q . k are the scores; the same for every head."""
    q = torch.eye(ROWS).expand(1, heads, ROWS, ROWS)
    k = scores.mT.expand(1, heads, KEYS, ROWS)
    return at.attend(q, k, k, scale=rule).stats


@pytest.mark.parametrize("scores", [gaussian, planted, sharply_planted, bounded])
@pytest.mark.parametrize("share", [0.05, 0.3, 0.6, 0.95])
def test_reaches_the_target_from_a_thousand_times_away(scores, share):
    scores, target = scores(), share * math.log(KEYS)
    rule = at.nn.AdaptiveScale(target, len(STARTS), tolerance=0.01)
    rule.log_gain.copy_(solution(scores, target) + STARTS)
    for _ in range(20):
        rule.update(measure(scores, rule, len(STARTS)))
    found = measure(scores, rule, len(STARTS)).per_head().entropy
    torch.testing.assert_close(found, torch.full_like(found, target), rtol=0.01, atol=0)
    assert not rule.saturated.any()
    assert rule.report() == ""


def test_two_clusters_of_near_ties():
    """A long plateau between two cliffs: secants crawl here, halving the bracket does not."""
    scores = 1e-3 * torch.randn(ROWS, KEYS)
    scores[:, : KEYS // 4] += 1.0
    target = 0.7 * math.log(KEYS)
    rule = at.nn.AdaptiveScale(target, len(STARTS), tolerance=0.01)
    rule.log_gain.copy_(solution(scores, target) + STARTS)
    for _ in range(20):
        rule.update(measure(scores, rule, len(STARTS)))
    found = measure(scores, rule, len(STARTS)).per_head().entropy
    torch.testing.assert_close(found, torch.full_like(found, target), rtol=0.01, atol=0)


def test_the_rule_of_the_documents_goes_the_wrong_way():
    scores, target = gaussian(), 2.0
    gain = 1.2 * math.exp(solution(scores, target))
    for _ in range(20):
        gain = min(gain * target / max(entropy(scores, gain), 1e-9), 1e9)
    assert abs(entropy(scores, gain) - target) > 0.5 * target


def test_ties_saturate_and_say_so(caplog):
    scores = torch.zeros(ROWS, KEYS)
    scores[:, :4] = 1.0
    rule = at.nn.AdaptiveScale(0.5, 2)
    with caplog.at_level(logging.WARNING, logger="attentropy"):
        for _ in range(40):
            rule.update(measure(scores, rule, 2))
            assert rule.gain.isfinite().all()
    assert rule.saturated.tolist() == [True, True]
    assert rule.gain.allclose(torch.tensor(1e6))
    line = "head 0: entropy 1.386 stays above the target 0.5 at the limit of the scale, 1e+06/sqrt"
    assert rule.report().startswith(line)
    assert len(caplog.records) == 1


def test_saturation_ends_when_the_scores_allow_the_target():
    tied, free = torch.zeros(ROWS, KEYS), gaussian()
    rule = at.nn.AdaptiveScale(2.0, 1, limits=(1e-3, 1e3))
    for _ in range(15):
        rule.update(measure(tied, rule, 1))
    assert rule.saturated.all()
    for _ in range(20):
        rule.update(measure(free, rule, 1))
    assert not rule.saturated.any()
    assert measure(free, rule, 1).per_head().entropy.item() == pytest.approx(2.0, rel=0.01)


def test_a_target_near_log_n_saturates_below_at_worst():
    scores = 50 * gaussian()
    rule = at.nn.AdaptiveScale(math.log(KEYS), 1, limits=(1e-2, 1e2))
    for _ in range(20):
        rule.update(measure(scores, rule, 1))
    assert rule.gain.item() >= 0.999e-2


def test_follows_scores_that_drift():
    scores = gaussian()
    rule = at.nn.AdaptiveScale(3.0, 1)
    for step in range(60):
        rule.update(measure(scores * (1 + 0.02 * step), rule, 1))
    found = measure(scores * (1 + 0.02 * 59), rule, 1).per_head().entropy
    assert found.item() == pytest.approx(3.0, rel=0.05)


def test_noisy_measurements_stay_near_the_target():
    rule = at.nn.AdaptiveScale(3.0, 1)
    seen, gains = [], []
    for _ in range(60):
        stats = measure(gaussian(), rule, 1)
        seen.append(stats.per_head().entropy.item())
        rule.update(stats)
        gains.append(rule.gain.item())
    assert sum(seen[20:]) / 40 == pytest.approx(3.0, abs=0.15)
    assert max(gains[20:]) < 2 * min(gains[20:])


def test_heads_move_apart():
    scores = gaussian()
    q = torch.eye(ROWS).expand(1, 2, ROWS, ROWS)
    k = torch.stack([scores.mT, 10 * scores.mT])[None]
    rule = at.nn.AdaptiveScale(2.5)
    for _ in range(15):
        rule.update(at.attend(q, k, k, scale=rule).stats)
    assert rule.num_heads == 2
    assert (rule.gain[0] / rule.gain[1]).item() == pytest.approx(10, rel=0.05)


def test_nothing_new_moves_nothing():
    rule = at.nn.AdaptiveScale(2.0, 1)
    rule.update(measure(gaussian(), rule, 1))
    before = rule.gain.clone()
    rule.advance()
    assert torch.equal(rule.gain, before)


def test_layer_updates_in_training_only():
    layer = at.nn.MultiheadAttention(16, 2, scale=at.nn.AdaptiveScale(1.0))
    x = 3 * torch.randn(2, 12, 16)
    layer.eval()
    layer(x)
    layer(x)
    assert torch.equal(layer.scale.gain, torch.ones(2))
    layer.train()
    for _ in range(20):
        layer(x)
    found = layer.eval()(x).stats.per_head().entropy
    torch.testing.assert_close(found, torch.ones(2).double(), rtol=0.01, atol=0)


@pytest.mark.slow
def test_layer_updates_when_compiled():
    torch._dynamo.reset()
    plain = at.nn.MultiheadAttention(16, 2, scale=at.nn.AdaptiveScale(1.0))
    layer = at.nn.MultiheadAttention(16, 2, scale=at.nn.AdaptiveScale(1.0))
    layer.load_state_dict(plain.state_dict())
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    x = 3 * torch.randn(2, 12, 16)
    for _ in range(5):
        plain(x)
        compiled(x)
    torch.testing.assert_close(layer.scale.gain, plain.scale.gain)
    assert not torch.equal(plain.scale.gain, torch.ones(2))


def test_checkpointing_recomputes_with_the_same_scale():
    from torch.utils.checkpoint import checkpoint

    layer = at.nn.MultiheadAttention(16, 2, scale=at.nn.AdaptiveScale(1.0, 2))
    x = torch.randn(2, 12, 16)
    layer(x)  # leaves a measurement pending
    twin = at.nn.MultiheadAttention(16, 2, scale=at.nn.AdaptiveScale(1.0, 2))
    twin.load_state_dict(layer.state_dict())
    layer(x).out.square().sum().backward()
    for reentrant in (False, True):
        other = at.nn.MultiheadAttention(16, 2, scale=at.nn.AdaptiveScale(1.0, 2))
        other.load_state_dict(twin.state_dict())
        y = checkpoint(
            lambda u, other=other: other(u).out, x.clone().requires_grad_(), use_reentrant=reentrant
        )
        y.square().sum().backward()
        torch.testing.assert_close(other.in_proj_weight.grad, layer.in_proj_weight.grad)
        torch.testing.assert_close(other.scale.gain, layer.scale.gain)


def test_state_dict_carries_the_search():
    scores = gaussian()
    rule = at.nn.AdaptiveScale(2.0, 1)
    for _ in range(3):
        rule.update(measure(scores, rule, 1))
    other = at.nn.AdaptiveScale(2.0)
    other.load_state_dict(rule.state_dict())
    for each in (rule, other):
        each.update(measure(scores, each, 1))
    assert torch.equal(rule.gain, other.gain)
    assert sorted(rule.state_dict()) == sorted(
        [
            "log_gain",
            "low",
            "high",
            "last_x",
            "last_phi",
            "step",
            "width",
            "measured",
            "room",
            "fresh",
            "saturated",
        ]
    )


def test_it_is_a_scale_without_gradient():
    rule = at.nn.AdaptiveScale(2.0, 3, init=4.0)
    scale = rule(16, torch.ones(1, 3, 5))
    assert scale.shape == (1, 3, 1)
    assert scale.flatten().tolist() == pytest.approx([1.0] * 3)
    assert not scale.requires_grad


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"target_entropy": -0.1}, "target_entropy must be in [0, log n], got -0.1"),
        ({"target_entropy": math.nan}, "target_entropy must be finite, got nan"),
        ({"target_entropy": 1.0, "init": 0.0}, "init must be finite and > 0, got 0.0"),
        ({"target_entropy": 1.0, "limits": (2.0, 1.0)}, "limits must be 0 < low < high < inf"),
        ({"target_entropy": 1.0, "num_heads": 0}, "num_heads must be >= 1, got 0"),
        ({"target_entropy": 1.0, "tolerance": -1.0}, "tolerance must be finite and > 0, got -1.0"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        at.nn.AdaptiveScale(**arguments)


def test_a_target_above_log_n_is_refused():
    rule = at.nn.AdaptiveScale(6.0, 1)
    with pytest.raises(ValueError, match=r"target_entropy must be in \[0, log n\] = \[0, 5.5452\]"):
        rule.update(measure(gaussian(), rule, 1))


def test_other_statistics_are_refused():
    rule = at.nn.AdaptiveScale(1.0, 2)
    with pytest.raises(ValueError, match="number of heads must be 2, got 1"):
        rule.update(measure(gaussian(), lambda d, n: torch.ones(1), 1))
    with pytest.raises(TypeError, match="statistics of weights that have an entropy"):
        rule.update(Stats(None, None, None, None, torch.ones(1, 2, 1), torch.ones(1, 2, 1)))
