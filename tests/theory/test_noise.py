import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attentropy.theory import noise
from attentropy.theory.entropy import softmax


@given(st.sampled_from(noise.KINDS), st.floats(1e-3, 0.45), st.floats(1e-3, 0.04))
def test_wider_noise_is_noisier(kind, scale, step):
    assert noise.mgf(kind, scale + step) >= noise.mgf(kind, scale) >= 1
    assert noise.relative_variance(kind, scale + step) > noise.relative_variance(kind, scale) > 0


@pytest.mark.parametrize(
    ("kind", "scale", "variance"),
    [("gaussian", 1e-4, 1e-8), ("uniform", 1e-4, 1e-8 / 3), ("laplace", 1e-4, 2e-8)],
)
def test_weak_noise_has_the_variance_of_the_score(kind, scale, variance):
    assert noise.relative_variance(kind, scale) == pytest.approx(variance, rel=1e-6)


@pytest.mark.parametrize(("kind", "scale"), [("gaussian", 0.5), ("uniform", 1.2), ("laplace", 0.2)])
def test_moments_and_prediction_against_monte_carlo(kind, scale):
    rng = np.random.default_rng(0)
    eps = noise.draw(kind, scale, (20000, 200), rng)
    e = np.exp(eps)
    assert abs(e.mean() - noise.mgf(kind, scale)) < 4 * e.std() / np.sqrt(e.size)
    assert noise.relative_variance_of(eps) == pytest.approx(
        noise.relative_variance(kind, scale), rel=0.02
    )
    assert noise.mgf_of(eps) == pytest.approx(noise.mgf(kind, scale), rel=0.01)
    p, v = softmax(rng.normal(size=200)), rng.normal(size=(200, 3))
    outputs = noise.simulate(p, v, eps)
    wanted = noise.predict(p, v, noise.relative_variance(kind, scale))
    np.testing.assert_allclose(outputs.std(0), wanted.std, rtol=0.05)
    error = outputs.std(0) / np.sqrt(len(outputs))
    assert (
        np.abs(outputs.mean(0) - p @ v - wanted.bias) < 4 * error + 0.2 * np.abs(wanted.bias)
    ).all()


def test_correlated_noise_against_monte_carlo():
    rng = np.random.default_rng(1)
    p, v = softmax(rng.normal(size=60)), rng.normal(size=60)
    a = 0.2 * rng.normal(size=(60, 60)) / np.sqrt(60)
    k = a @ a.T + 0.04 * np.diag(rng.uniform(size=60)) + 0.3
    eps = rng.multivariate_normal(np.zeros(60), k, size=40000)
    outputs = noise.simulate(p, v, eps)
    wanted = noise.predict_correlated(p, v, k)
    assert outputs.std() == pytest.approx(wanted.std, rel=0.03)
    assert abs(outputs.mean() - p @ v - wanted.bias) < 4 * outputs.std() / 200 + 0.5 * abs(
        wanted.bias
    )


def test_uncorrelated_is_the_independent_case():
    rng = np.random.default_rng(2)
    p, v = softmax(rng.normal(size=30)), rng.normal(size=(30, 2))
    a = noise.predict(p, v, noise.relative_variance("gaussian", 0.4))
    b = noise.predict_correlated(p, v, 0.16 * np.eye(30))
    np.testing.assert_allclose(a.std, b.std, rtol=1 / 30)
    np.testing.assert_allclose(a.bias, b.bias, rtol=1 / 30)


def test_a_common_shift_has_no_effect():
    p, v = softmax(np.arange(5.0)), np.arange(5.0)
    wanted = noise.predict_correlated(p, v, np.full((5, 5), 0.7))
    assert abs(wanted.bias) < 1e-14
    assert wanted.std < 1e-7


def test_noise_on_some_keys_only_shifts_their_weight():
    """Keys with noise of variance k gain a factor e^(k/2): it does not cancel."""
    p, v = np.full(400, 1 / 400), np.repeat([0.0, 1.0], 200)
    k = np.diag(np.repeat([0.0, 1.0], 200))
    eps = np.random.default_rng(3).normal(size=(4000, 400)) * np.sqrt(np.diag(k))
    wanted = noise.predict_correlated(p, v, k)
    outputs = noise.simulate(p, v, eps)
    assert wanted.bias == pytest.approx(np.exp(0.5) / (1 + np.exp(0.5)) - 0.5, abs=0.002)
    assert outputs.mean() - 0.5 == pytest.approx(wanted.bias, abs=0.002)
    assert outputs.std() == pytest.approx(wanted.std, rel=0.05)


def test_thresholds_say_where_moments_diverge():
    mean, variance = noise.divergence_thresholds("laplace")
    assert np.isinf(noise.mgf_laplace(mean))
    assert np.isfinite(noise.mgf_laplace(np.nextafter(mean, 0)))
    assert np.isinf(noise.relative_variance("laplace", variance))
    assert np.isfinite(noise.relative_variance("laplace", np.nextafter(variance, 0)))
    assert noise.divergence_thresholds("gaussian") == (np.inf, np.inf)
    assert np.isinf(noise.predict([0.5, 0.5], [0.0, 1.0], np.inf).std)


def test_arrays_equal_scalars():
    x = np.array([1e-6, 0.3, 0.7, 3.0])
    for f in (noise.mgf_gaussian, noise.mgf_uniform, noise.mgf_laplace):
        np.testing.assert_array_equal(f(x), [f(a) for a in x])
    for kind in noise.KINDS:
        rho = noise.relative_variance(kind, x)
        np.testing.assert_array_equal(rho, [noise.relative_variance(kind, a) for a in x])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: noise.mgf("cauchy", 1.0),
            "kind must be one of gaussian, uniform, laplace, got cauchy",
        ),
        (lambda: noise.relative_variance("laplace", 0.0), "scale must be finite and > 0, got 0.0"),
        (lambda: noise.predict([0.5, 0.5], [1.0], 1.0), "values must be of 2 rows"),
        (lambda: noise.predict([0.5, 0.5], [1.0, 2.0], -1.0), "rho must be >= 0, got -1.0"),
        (lambda: noise.predict_correlated([0.5, 0.5], [1.0, 2.0], [[1.0]]), "covariance must be"),
        (lambda: noise.relative_variance_of([1.0]), "samples must be at least two"),
        (
            lambda: noise.draw("gaussian", -1.0, 3, np.random.default_rng()),
            "scale must be finite and >= 0, got -1.0",
        ),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call()
