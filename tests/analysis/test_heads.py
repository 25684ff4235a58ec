"""Comparison of heads against its definition on dense maps."""

import math

import pytest
import torch

import attentropy as at
from tests.analysis.maps import CASES, entropy, tensors, weights

an = at.analysis


@pytest.mark.parametrize("name", CASES)
def test_everything_is_its_definition(name):
    q, k, _ = tensors()
    p = weights(q, k, **CASES[name])
    found = an.compare_heads(q, k, **CASES[name])
    torch.testing.assert_close(found.entropy, entropy(p).mean((0, 2)))
    whole = entropy(p.mean(1)).mean()
    torch.testing.assert_close(found.entropy_of_mean, whole)
    torch.testing.assert_close(an.entropy_of_mean(q, k, **CASES[name]), whole)
    torch.testing.assert_close(found.diversity, whole - entropy(p).mean())
    seen = p.sum(-1) > 0
    mean = p.sum(2) / seen.sum(2, keepdim=True)
    torch.testing.assert_close(found.position_entropy, entropy(mean).mean(0))
    rows = entropy(p).sum(2) / seen.sum(2)
    torch.testing.assert_close(found.information, (entropy(mean) - rows).mean(0))
    for g in range(4):
        for h in range(4):
            middle = (p[:, g] + p[:, h]) / 2
            js = (entropy(middle) - (entropy(p[:, g]) + entropy(p[:, h])) / 2).mean()
            torch.testing.assert_close(found.divergence[g, h], js, atol=1e-12, rtol=1e-6)


def test_bounds_of_the_mean_map():
    q, k, _ = tensors(size=3.0)
    found = an.compare_heads(q, k)
    assert found.entropy.mean() <= found.entropy_of_mean
    assert found.entropy_of_mean <= found.entropy.mean() + math.log(4)
    assert 0 <= found.diversity <= math.log(4)
    assert found.divergence.max() <= math.log(2)
    assert torch.equal(found.divergence, found.divergence.T)


def test_information_of_extreme_heads():
    eye = 60 * torch.eye(8, dtype=torch.double)[None, None]
    same = torch.ones(1, 1, 8, 8, dtype=torch.double)
    assert an.mutual_information(eye, eye).item() == pytest.approx(math.log(8), rel=1e-6)
    assert an.mutual_information(same, eye).item() == pytest.approx(0.0, abs=1e-9)


def test_duplicate_heads_are_found_closest_first():
    q, k, _ = tensors(kv_heads=1, size=2.0)
    q[:, 3] = q[:, 0]
    q[:, 2] = q[:, 1] + 0.05 * torch.randn_like(q[:, 1])
    pairs = an.duplicate_heads(q, k, threshold=0.02)
    assert [(p.one, p.other) for p in pairs] == [(0, 3), (1, 2)]
    assert pairs[0].divergence == pytest.approx(0.0, abs=1e-12)
    with pytest.raises(ValueError, match="threshold must be > 0, got 0"):
        an.duplicate_heads(q, k, threshold=0)


def test_a_sink_has_no_position():
    q, k, _ = tensors()
    with pytest.raises(ValueError, match="sink must be None: a sink has no position"):
        an.mutual_information(q, k, sink=torch.zeros(4))
