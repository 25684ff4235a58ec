"""Gradient flow against automatic differentiation and Monte Carlo."""

import pytest
import torch

import attentropy as at
from tests.analysis.maps import CASES, tensors, weights

an = at.analysis


@pytest.mark.parametrize("name", CASES)
def test_jacobian_norm_is_that_of_autograd(name):
    q, k, v = tensors(batch=1, queries=5, keys=7)
    wide = v.repeat_interleave(2, 1)
    p = weights(q, k, **CASES[name])
    want = torch.zeros(p.shape[:3], dtype=torch.double)
    for h in range(4):
        for i in range(5):
            if not p[0, h, i].any():
                continue
            row = p[0, h, i].log()
            jacobian = torch.autograd.functional.jacobian(
                lambda s, h=h: s.softmax(-1) @ wide[0, h], row
            )
            want[0, h, i] = jacobian.nan_to_num(0.0).norm()
    torch.testing.assert_close(an.jacobian_norm(q, k, v, **CASES[name]), want)


def test_saturated_counts_rows_with_a_choice():
    q, k, v = tensors(size=3.0)
    _, stats = at.attend(q, k, v, mask=at.causal)
    p = weights(q, k, mask=at.causal)
    flow = 1 - p.square().sum(-1)
    want = (flow[..., 1:] < 0.2).double().mean((0, 2))
    torch.testing.assert_close(an.saturated(stats, threshold=0.2), want)
    with pytest.raises(ValueError, match=r"threshold must be in \(0, 1\), got 2"):
        an.saturated(stats, threshold=2)
    with pytest.raises(TypeError, match="stats must be statistics of probabilities"):
        an.saturated(at.attend(q, k, v, weights=at.Linear()).stats)


@pytest.mark.parametrize("name", CASES)
def test_live_keys_counts_keys_with_gradient(name):
    q, k, _ = tensors(size=2.0)
    p = weights(q, k, **CASES[name])
    visible = at.attend(q, k, k, **CASES[name]).stats.visible
    want = (p * (1 - p) > 0.025).sum(-1) / visible.clamp(min=1)
    torch.testing.assert_close(
        an.live_keys(q, k, threshold=0.1, **CASES[name]), want.double(), check_dtype=False
    )
    with pytest.raises(ValueError, match="threshold"):
        an.live_keys(q, k, threshold=0.0)


def test_flow_falls_with_scale():
    q, k, v = tensors(queries=30, keys=60, size=1.5)
    flow = an.flow_by_scale(q, k, v, [0.1, 1.0, 10.0, 100.0])
    for column in (flow.entropy, flow.flow):
        assert (column.diff(dim=0) < 0).all()
    assert (flow.saturated.diff(dim=0) >= 0).all()
    _, stats = at.attend(q, k, v)
    torch.testing.assert_close(flow.entropy[1], stats.per_head().entropy)
    torch.testing.assert_close(flow.jacobian[1], an.jacobian_norm(q, k, v).mean((0, 2)))
    with pytest.raises(ValueError, match="factors must be numbers >= 0"):
        an.flow_by_scale(q, k, v, [-1.0])


@pytest.mark.parametrize("spread", [0.0, 1.0, 3.0])
def test_expected_flow_is_that_of_gaussian_rows(spread):
    p = (spread * torch.randn(4000, 64, dtype=torch.double)).softmax(-1)
    want = (1 - p.square().sum(-1)).mean().item()
    assert an.expected_flow(64, spread) == pytest.approx(want, rel=0.02)
