"""Noise: measured against simulation, predicted against measured, worst against brute force."""

import itertools
import math
import re

import pytest
import torch

import attentropy as at
from tests.analysis.maps import CASES, tensors, weights

an = at.analysis


def per_query_head(v):
    return v.repeat_interleave(2, 1)


@pytest.mark.parametrize("kind", ["gaussian", "uniform", "laplace"])
def test_noise_has_the_law_it_names(kind):
    noise = an.Noise(0.4, kind)
    drawn = noise.draw(torch.zeros(4, 500, 100).double(), torch.Generator().manual_seed(0))
    variance = {"gaussian": 0.16, "uniform": 0.16 / 3, "laplace": 0.32}[kind]
    assert drawn.mean().item() == pytest.approx(0.0, abs=0.01)
    assert drawn.var().item() == pytest.approx(variance, rel=0.03)
    e = drawn.exp()
    assert noise.relative_variance == pytest.approx((e.var() / e.mean() ** 2).item(), rel=0.15)


def test_correlated_noise_shares_a_part():
    noise = an.Noise(0.5, correlation=0.6)
    drawn = noise.draw(torch.zeros(1, 20000, 2).double(), torch.Generator().manual_seed(0))
    correlation = torch.corrcoef(drawn[0].T)[0, 1].item()
    assert correlation == pytest.approx(0.6, abs=0.02)
    assert drawn.std().item() == pytest.approx(0.5, rel=0.02)


@pytest.mark.parametrize(
    "noise",
    [
        an.Noise(0.3),
        an.Noise(0.3, correlation=0.5),
        an.Noise(0.5, "uniform"),
        an.Noise(0.2, "laplace"),
    ],
    ids=["gaussian", "correlated", "uniform", "laplace"],
)
def test_prediction_meets_measurement(noise):
    q, k, v = tensors(batch=1, queries=20, keys=200)
    measured = an.measured_error(q, k, v, noise, samples=20)
    torch.testing.assert_close(an.predicted_error(q, k, v, noise), measured, rtol=0.1, atol=0)


def test_measured_error_is_its_definition():
    q, k, v = tensors(batch=1, queries=5, keys=9)
    noise = an.Noise(0.7)
    got = an.measured_error(q, k, v, noise, samples=3, seed=4, mask=at.causal)
    p = weights(q, k, mask=at.causal)[0]
    generator = torch.Generator().manual_seed(4)
    v = per_query_head(v)[0]
    squares = []
    for _ in range(3):
        tilted = p * noise.draw(p, generator).exp()
        squares.append(((tilted / tilted.sum(-1, keepdim=True) - p) @ v).square().sum(-1))
    torch.testing.assert_close(got, torch.stack(squares).mean((0, 2)).sqrt())


def test_wholly_common_noise_cancels():
    q, k, v = tensors()
    error = an.measured_error(q, k, v, an.Noise(2.0, correlation=1.0), samples=2)
    assert error.max() < 1e-12


@pytest.mark.parametrize("name", CASES)
def test_predicted_error_is_its_formula(name):
    q, k, v = tensors()
    p, wide = weights(q, k, **CASES[name]), per_query_head(v)
    rho = math.expm1(0.3**2)
    gap = wide[:, :, None] - (p @ wide)[:, :, :, None]
    square = p.square()[..., None]
    variance = rho * (square * gap.square()).sum((3, 4))
    bias = (rho * (square * gap).sum(3)).square().sum(-1)
    want = (variance + bias).mean((0, 2)).sqrt()
    torch.testing.assert_close(an.predicted_error(q, k, v, an.Noise(0.3), **CASES[name]), want)


def test_dense_covariance_agrees_with_theory_and_with_independence():
    from attentropy.theory.noise import predict_correlated

    q, k, v = tensors(batch=1, queries=3, keys=9)
    independent = an.predicted_error_dense(q, k, v, 0.09 * torch.eye(9))
    torch.testing.assert_close(independent, an.predicted_error(q, k, v, an.Noise(0.3)))
    assert an.predicted_error_dense(q, k, v, torch.ones(9, 9)).max() < 1e-7
    root = torch.randn(9, 9, dtype=torch.double) * 0.1
    covariance = root @ root.T
    p, wide = weights(q, k)[0], per_query_head(v)[0]
    want = torch.zeros(4, 3).double()
    for h, i in itertools.product(range(4), range(3)):
        bias, std = predict_correlated(p[h, i].numpy(), wide[h].numpy(), covariance.numpy())
        want[h, i] = float((bias**2).sum() + (std**2).sum())
    got = an.predicted_error_dense(q, k, v, covariance)
    # theory takes what keys share off first: the same to first order
    torch.testing.assert_close(got, want.mean(1).sqrt(), rtol=2e-3, atol=0)
    drawn = torch.randn(20000, 9, dtype=torch.double) @ root.T
    tilted = p[:, :, None] * drawn.exp()
    moved = tilted / tilted.sum(-1, keepdim=True) @ wide[:, None]
    simulated = (moved - (p @ wide)[:, :, None]).square().sum(-1).mean((1, 2)).sqrt()
    torch.testing.assert_close(got, simulated, rtol=0.1, atol=0)
    with pytest.raises(ValueError, match=r"covariance must be \[K,K\] with K = 9"):
        an.predicted_error_dense(q, k, v, torch.eye(8))


@pytest.mark.parametrize("radius", [1e-3, 0.5, 2.0])
def test_worst_case_in_the_cube_is_the_best_corner(radius):
    q, k, v = tensors(batch=1, queries=40, keys=8, size=1.5)
    p, wide = weights(q, k)[0], per_query_head(v)[0]
    corners = radius * torch.tensor(list(itertools.product([-1.0, 1.0], repeat=8))).double()
    tilted = p[:, :, None] * corners.exp()
    moved = tilted / tilted.sum(-1, keepdim=True) @ wide[:, None]
    best = (moved - (p @ wide)[:, :, None]).norm(dim=-1).amax(-1)
    got = an.worst_error(q, k, v, radius)[0]
    assert (got <= best * (1 + 1e-9)).all()
    assert (got / best).min() > 0.95
    assert (got / best).mean() > 0.998


@pytest.mark.parametrize("radius", [1e-4, 1.0])
def test_worst_case_in_the_ball(radius):
    q, k, v = tensors(batch=1, queries=4, keys=8, size=1.5)
    p, wide = weights(q, k)[0], per_query_head(v)[0]
    got = an.worst_error(q, k, v, radius, norm="2")[0]
    jacobian = p[..., None] * (wide[:, None] - (p @ wide)[:, :, None])
    slope = torch.linalg.matrix_norm(jacobian, 2)
    if radius < 0.01:
        torch.testing.assert_close(got, radius * slope, rtol=1e-3, atol=0)
    tries = torch.nn.functional.normalize(torch.randn(20000, 8).double(), dim=-1) * radius
    tilted = p[:, :, None] * tries.exp()
    moved = tilted / tilted.sum(-1, keepdim=True) @ wide[:, None]
    random = (moved - (p @ wide)[:, :, None]).norm(dim=-1).amax(-1)
    assert (got >= random * 0.999).all()


def test_a_fixed_random_direction_finds_less():
    q, k, v = tensors(queries=20, keys=30)
    p, wide = weights(q, k), per_query_head(v)
    out = p @ wide
    w = torch.randn_like(out)
    pull = w @ wide.mT - (w * out).sum(-1, keepdim=True)
    tilted = p * (0.5 * pull.sign()).exp()
    moved = tilted / tilted.sum(-1, keepdim=True) @ wide
    fixed = (moved - out).norm(dim=-1)
    worst = an.worst_error(q, k, v, 0.5)
    assert (worst >= fixed - 1e-12).all()
    assert fixed.mean() < 0.9 * worst.mean()


@pytest.mark.parametrize("norm", ["inf", "2"])
@pytest.mark.parametrize("name", CASES)
def test_certified_is_never_exceeded(norm, name):
    q, k, v = tensors(size=2.0)
    for radius in (0.1, 1.0, 5.0):
        worst = an.worst_error(q, k, v, radius, norm=norm, **CASES[name]).amax(2)
        assert (worst <= an.certified_error(v, radius, norm=norm, heads=4) + 1e-9).all()


def test_certified_is_sharp_for_two_keys():
    q = torch.tensor([[[[1.0]]]]).double()
    radius = 0.8
    k = torch.tensor([[[[-radius], [radius]]]]).double()
    v = torch.tensor([[[[0.0], [3.0]]]]).double()
    worst = an.worst_error(q, k, v, radius, scale=0.5).item()
    # p = (sigma(-radius), sigma(radius)) moves to its mirror image of range 2 radius
    assert worst == pytest.approx(3 * math.tanh(radius / 2), rel=1e-6)
    assert an.certified_error(v, radius).item() == pytest.approx(3 * math.tanh(radius / 2))


def test_diameter_by_blocks(monkeypatch):
    v = torch.randn(2, 3, 50, 4)
    want = torch.cdist(v.double(), v.double()).amax((2, 3))
    torch.testing.assert_close(an.diameter(v), want)


def test_the_three_in_order():
    found = an.compare_errors(*tensors(queries=20, keys=60), 0.5, mask=at.causal)
    assert (found.measured < found.worst).all()
    assert (found.worst <= found.certified).all()
    torch.testing.assert_close(found.measured, found.predicted, rtol=0.2, atol=0)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: an.Noise(0.0), "scale must be positive and finite, got 0.0"),
        (lambda: an.Noise(1.0, "cauchy"), "kind must be one of"),
        (lambda: an.Noise(1.0, correlation=2.0), "correlation must be in [0, 1], got 2.0"),
        (lambda: an.Noise(1.0, "uniform", 0.5), "correlation must be 0 unless"),
        (lambda: an.worst_error(*tensors(), 0.0), "radius must be positive and finite, got 0.0"),
        (lambda: an.worst_error(*tensors(), 1.0, norm="1"), "norm must be one of ('inf', '2')"),
        (lambda: an.measured_error(*tensors(), an.Noise(1.0), samples=0), "samples must be >= 1"),
    ],
)
def test_bad_arguments(build, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        build()
