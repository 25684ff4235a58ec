"""Factors found in a few steps, against bisection on dense weights in float64."""

import math

import pytest
import torch

from attentropy.models.factors import LEAST, MOST, next_factors, solved
from attentropy.models.record.curves import Curve

KEYS, ROWS = 512, 8


def heads():
    """Rows of scores [H,R,K] of many kinds."""
    g = torch.Generator().manual_seed(0)

    def normal(spread):
        return torch.randn(ROWS, KEYS, generator=g, dtype=torch.float64) * spread

    near = torch.arange(KEYS - 1, -1, -1).double() / 40
    raised = normal(0.7)
    raised[:, 0] += 4
    heavy = normal(1.0) / normal(1.0).abs().clamp(min=0.3)
    kinds = [normal(0.05), normal(0.5), normal(2.0), normal(0.3) - near, raised, heavy]
    return torch.stack([*kinds, 3 * normal(1.0).sigmoid()])


def entropy(scores, factor):
    log_p = (scores * factor.view(-1, 1, 1)).log_softmax(-1)
    surprise = log_p.masked_fill(log_p.exp() == 0, 0.0)
    h = -(log_p.exp() * surprise).sum(-1)
    spread = (log_p.exp() * (surprise + h[..., None]).square()).sum(-1)
    return h.sum(-1), spread.sum(-1)


def searched(scores, goal):
    """The curve after a search, as a watch does it."""
    one = torch.ones(len(scores), dtype=torch.float64)
    h, fall = entropy(scores, one)
    logs = ROWS * math.log(KEYS)
    curve = Curve(one[:, None], h[:, None], fall[:, None], one, logs, logs, ROWS)
    while (factor := next_factors(curve, goal)) is not None:
        curve = curve.also(factor, *entropy(scores, factor))
    return curve


@pytest.mark.parametrize("factor", [0.6, 0.9, 1.0, 1.3, 2.0, 3.0])
def test_three_points_find_a_factor_to_a_thousandth(factor):
    scores = heads()
    goal = entropy(scores, torch.full((len(scores),), factor, dtype=torch.float64))[0] / ROWS
    curve = searched(scores, goal)
    assert curve.factors.shape[1] <= 3
    assert solved(curve, goal) == pytest.approx([factor] * len(scores), rel=1e-3)


@pytest.mark.parametrize("factor", [5.0, 8.0, 15.0])
def test_far_factors_may_take_more_points(factor):
    scores = heads()
    goal = entropy(scores, torch.full((len(scores),), factor, dtype=torch.float64))[0] / ROWS
    assert solved(searched(scores, goal), goal) == pytest.approx([factor] * len(scores), rel=0.01)


def test_heads_that_no_factor_holds():
    scores = heads()
    ends = torch.tensor([LEAST / 2, MOST * 2], dtype=torch.float64)
    for end in ends:
        goal = entropy(scores, end.expand(len(scores)))[0] / ROWS
        assert solved(searched(scores, goal), goal) == [None] * len(scores)
    flat = torch.zeros(1, ROWS, KEYS, dtype=torch.float64)
    assert solved(searched(flat, torch.ones(1)), torch.ones(1)) == [None]


def test_heads_of_one_layer_have_factors_of_their_own():
    scores = heads()[:3]
    wanted = torch.tensor([1.5, 0.7, 2.5], dtype=torch.float64)
    goal = entropy(scores, wanted)[0] / ROWS
    assert solved(searched(scores, goal), goal) == pytest.approx(wanted.tolist(), rel=1e-3)
