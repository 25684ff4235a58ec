"""Learned scales start where they say, and get gradients through attend()."""

import math

import pytest
import torch

import attentropy as at

nn = at.nn


def test_learned_scale_starts_at_its_base():
    visible = torch.tensor([[[1.0, 8.0, 64.0]]])
    for base in (at.InverseSqrt(), at.LogLength(2.0), at.Constant(3.0)):
        rule = nn.LearnedScale(4, base=base)
        want = base(16, visible).expand(1, 4, 3)
        torch.testing.assert_close(rule(16, visible).expand(1, 4, 3), want)


def test_learned_scale_has_a_gain_for_each_head_and_a_limit():
    rule = nn.LearnedScale(2, base=at.Constant(10.0), limit=25.0)
    with torch.no_grad():
        rule.log_gain.copy_(torch.tensor([2.0, 5.0]).log())
    assert rule(8, torch.ones(1, 1, 1)).flatten().tolist() == pytest.approx([20.0, 25.0])


def test_ssmax_is_the_plain_scale_at_its_reference():
    rule = nn.SSMax(2, reference=64)
    scale = rule(16, torch.tensor([[[1.0, 8.0, 64.0]]]))
    want = torch.tensor([0.0, 0.5, 1.0]) / 4
    torch.testing.assert_close(scale, want.expand(1, 2, 3))


@pytest.mark.parametrize("rule", [lambda: nn.LearnedScale(2), lambda: nn.SSMax(2, reference=4)])
def test_gradients_flow_through_attend(rule):
    rule = rule().double()
    q, k = torch.randn(1, 2, 5, 4).double(), torch.randn(1, 2, 6, 4).double()
    parameter = next(rule.parameters())

    def run(value):
        scale = torch.func.functional_call(
            rule, {next(iter(dict(rule.named_parameters()))): value}, (4, torch.full((1, 1, 5), 6))
        )
        out, stats = at.attend(q, k, k, scale=scale)
        return out, stats.entropy

    assert torch.autograd.gradcheck(run, (parameter.detach().requires_grad_(),), atol=1e-4)
    _, stats = at.attend(q, k, k, scale=rule)
    stats.entropy.sum().backward()
    assert parameter.grad.abs().min() > 0


def test_training_a_scale_finds_an_entropy():
    rule = nn.LearnedScale(1)
    q, k = torch.randn(1, 1, 20, 8), torch.randn(1, 1, 50, 8)
    optimiser = torch.optim.Adam(rule.parameters(), 0.1)
    for _ in range(100):
        _, stats = at.attend(q, k, k, scale=rule)
        loss = (stats.entropy.mean() - 2.0).square()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert stats.entropy.mean().item() == pytest.approx(2.0, abs=0.05)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: nn.LearnedScale(0), "num_heads must be >= 1, got 0"),
        (lambda: nn.LearnedScale(2, base=3.0), "base must be a scale rule, got 3.0"),
        (lambda: nn.LearnedScale(2, limit=0.0), "limit must be finite and > 0, got 0.0"),
        (lambda: nn.SSMax(2, reference=1), "reference must be >= 2, got 1"),
        (lambda: nn.SSMax(3)(8, torch.ones(1, 2, 4)), "heads of the scale must be 2, got 3"),
    ],
)
def test_bad_arguments(build, message):
    with pytest.raises((ValueError, TypeError)) as caught:
        build()
    assert message in str(caught.value)


def test_state_dicts():
    assert list(nn.LearnedScale(2).state_dict()) == ["log_gain"]
    assert list(nn.SSMax(2).state_dict()) == ["slope", "offset"]
    assert nn.SSMax(2).slope[0].item() == pytest.approx(1 / math.log(1024))
