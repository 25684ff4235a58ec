"""Noise on the scores: how much of it survives the softmax.

A law enters through M = E e^eps and rho = Var(e^eps)/M^2 only. M cancels between numerator and
denominator; what is left is a bias -rho sum p^2 (v - o) and a standard deviation
sqrt(rho sum p^2 (v - o)^2), so robustness is a matter of 1/sum p^2, not of n.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from attentropy.core.errors import ArgumentError
from attentropy.theory._arrays import (
    Array,
    above,
    at_least,
    elementwise,
    finite,
    floats,
    number,
    probabilities_array,
    require,
)
from attentropy.theory._special import coth_excess, exp_scaled_square

KINDS = ("gaussian", "uniform", "laplace")


@elementwise
def mgf_gaussian(sigma: Any) -> Any:
    """E e^eps = e^(sigma^2/2); inf once that exceeds the float range.

    Args:
        sigma: standard deviation of eps.

    >>> mgf_gaussian(2.0)
    7.3890560989306...
    """
    at_least("sigma", sigma, 0)
    return exp_scaled_square(sigma, 0.5)


@elementwise
def mgf_uniform(a: Any) -> Any:
    """E e^eps = sinh(a)/a for eps uniform on [-a, a]; inf beyond the float range.

    Args:
        a: half width of the interval.

    >>> mgf_uniform(1.0)
    1.175201193643...
    """
    at_least("a", a, 0)
    half = np.exp(a / 2)
    safe = np.where(a == 0, 1.0, a)
    near = np.where(a == 0, 1.0, np.sinh(safe) / safe)
    return np.where(a > 30, half / (2 * safe) * half, near)


@elementwise
def mgf_laplace(b: Any) -> Any:
    """E e^eps = 1/(1 - b^2) for b < 1; inf for b >= 1.

    Args:
        b: scale of the Laplace law, > 0.

    >>> mgf_laplace(0.5)
    1.3333333333333...
    """
    above("b", b, 0)
    return np.where(b < 1, 1 / ((1 - b) * (1 + b)), np.inf)


def mgf(kind: str, scale: Any) -> Any:
    """E e^eps of the named law.

    Args:
        kind: "gaussian", "uniform" or "laplace".
        scale: standard deviation, half width or Laplace b.
    """
    _check_kind(kind)
    size = floats("scale", scale)
    (above if kind == "laplace" else at_least)("scale", size, 0)
    return {"gaussian": mgf_gaussian, "uniform": mgf_uniform, "laplace": mgf_laplace}[kind](size)


def _check_kind(kind: str) -> None:
    if kind not in KINDS:
        raise ArgumentError("kind", f"one of {', '.join(KINDS)}", kind)


def relative_variance(kind: str, scale: Any) -> Any:
    """rho = Var(e^eps)/E[e^eps]^2: e^(s^2) - 1, a coth a - 1, (2b^2+b^4)/(1-4b^2).

    Laplace noise has rho = inf from b = 1/2 on although its mean is finite up to b = 1.

    Args:
        kind: "gaussian", "uniform" or "laplace".
        scale: standard deviation s, half width a or Laplace b.

    >>> relative_variance("laplace", 0.49)
    13.582020454545...
    """
    _check_kind(kind)
    if kind == "gaussian":
        return _rho_gaussian(scale)
    return _rho_uniform(scale) if kind == "uniform" else _rho_laplace(scale)


@elementwise
def _rho_gaussian(scale: Any) -> Any:
    at_least("scale", scale, 0)
    return np.where(scale < 1, np.expm1(scale * scale), exp_scaled_square(scale, 1.0) - 1)


@elementwise
def _rho_uniform(scale: Any) -> Any:
    at_least("scale", scale, 0)
    return coth_excess(scale)


@elementwise
def _rho_laplace(scale: Any) -> Any:
    above("scale", scale, 0)
    square = scale * scale
    return np.where(
        scale < 0.5, (2 + square) * square / ((1 - 2 * scale) * (1 + 2 * scale)), np.inf
    )


def relative_variance_of(samples: Any) -> float:
    """rho of any law given by samples of eps (at least two), shifted so that nothing overflows.

    Args:
        samples: draws of eps.
    """
    eps = floats("samples", samples).ravel()
    require("samples", "at least two finite numbers", len(eps), len(eps) >= 2)
    finite("samples", eps)
    weight = np.exp(eps - eps.max())
    return float(weight.var() / weight.mean() ** 2)


def mgf_of(samples: Any) -> float:
    """E e^eps estimated from samples of eps.

    Args:
        samples: draws of eps.
    """
    eps = floats("samples", samples).ravel()
    require("samples", "at least one finite number", len(eps), len(eps) >= 1)
    finite("samples", eps)
    with np.errstate(over="ignore"):
        return float(np.exp(eps.max()) * np.exp(eps - eps.max()).mean())


class DivergenceThresholds(NamedTuple):
    """Scales from which the mean of e^eps, and its variance, are infinite."""

    mean: float
    variance: float


def divergence_thresholds(kind: str) -> DivergenceThresholds:
    """Where noise stops cancelling (mean) and where the 1/sqrt(n) rate stops (variance).

    Args:
        kind: "gaussian", "uniform" or "laplace".

    >>> divergence_thresholds("laplace")
    DivergenceThresholds(mean=1.0, variance=0.5)
    """
    _check_kind(kind)
    return (
        DivergenceThresholds(1.0, 0.5)
        if kind == "laplace"
        else DivergenceThresholds(math.inf, math.inf)
    )


class Prediction(NamedTuple):
    """First-order effect of noise on an attention output."""

    bias: Array
    std: Array


def predict(p: Any, values: Any, rho: Any) -> Prediction:
    """Bias -rho sum p^2 (v - o) and standard deviation sqrt(rho sum p^2 (v - o)^2) of the output.

    The noise on each score is independent of the others; an infinite rho gives inf.

    Args:
        p: weights without noise, [n].
        values: v, [n] or [n, d].
        rho: relative variance of e^eps, one number.
    """
    weight = probabilities_array(p)
    v, rho = floats("values", values), floats("rho", rho)
    if v.shape[:1] != weight.shape:
        raise ArgumentError("values", f"of {len(weight)} rows", v.shape)
    at_least("rho", rho, 0, finite=False)
    centred = v - np.tensordot(weight, v, 1)
    square = weight * weight
    with np.errstate(invalid="ignore"):
        bias = -rho * np.tensordot(square, centred, 1)
        return Prediction(bias, np.sqrt(rho * np.tensordot(square, centred * centred, 1)))


def predict_correlated(p: Any, values: Any, covariance: Any) -> Prediction:
    """Bias and standard deviation of the output for jointly Gaussian noise.

    What all keys share is taken off first: a common shift has no effect at all. Weights are then
    reweighed by e^(K_ii/2), and the relative covariance e^(K_ij) - 1 acts. The bias is against the
    output without noise.

    Args:
        p: weights without noise, [n].
        values: v, [n] or [n, d].
        covariance: K between the scores, [n, n].
    """
    weight, k = probabilities_array(p), floats("covariance", covariance)
    v = floats("values", values)
    if v.shape[:1] != weight.shape:
        raise ArgumentError("values", f"of {len(weight)} rows", v.shape)
    if k.shape != weight.shape * 2:
        raise ArgumentError("covariance", f"[n, n] with n = {len(weight)}", k.shape)
    finite("covariance", k)
    k = k - _common_variance(k)
    shifted = weight * np.exp(np.diag(k) / 2 - np.diag(k).max() / 2)
    shifted /= shifted.sum()
    centre = np.tensordot(shifted, v, 1)
    relative = np.expm1(k) * np.outer(shifted, shifted)
    centred = v - centre
    drift = centre - np.tensordot(weight, v, 1)
    bias = drift - np.tensordot(relative.sum(0), centred, 1)
    variance = np.einsum("ij,i...,j...->...", relative, centred, centred)
    return Prediction(bias, np.sqrt(np.maximum(variance, 0.0)))


def _common_variance(k: Array) -> float:
    """1/(1^T K^-1 1): the largest variance of a shift shared by all keys; 0 if there is none."""
    inverse, ones = np.linalg.pinv(k, hermitian=True), np.ones(len(k))
    explained = inverse @ ones
    if not np.allclose(k @ explained, ones, atol=1e-6):
        return 0.0
    return float(1 / explained.sum())


def ratio_mean(mean_x: Any, mean_y: Any, covariance: Any, variance_y: Any) -> Any:
    """E[X/Y] to second order: EX/EY - Cov(X,Y)/EY^2 + Var(Y) EX/EY^3.

    Args:
        mean_x: EX.
        mean_y: EY, not 0.
        covariance: Cov(X,Y).
        variance_y: Var(Y).

    >>> ratio_mean(2.0, 4.0, 0.3, 0.5)
    0.496875
    """
    return _ratio_mean(mean_x, mean_y, covariance, variance_y)


@elementwise
def _ratio_mean(mean_x: Any, mean_y: Any, covariance: Any, variance_y: Any) -> Any:
    finite("mean_x", mean_x)
    require("mean_y", "finite and not 0", mean_y, np.isfinite(mean_y) & (mean_y != 0))
    finite("covariance", covariance)
    at_least("variance_y", variance_y, 0)
    ratio = mean_x / mean_y
    apart = ratio - covariance / mean_y / mean_y + variance_y * ratio / mean_y / mean_y
    # over one denominator a tiny EY gives inf with its sign, where inf - inf would be NaN
    over = mean_x * mean_y * mean_y - covariance * mean_y + variance_y * mean_x
    return np.where(np.isnan(apart), over / mean_y / mean_y / mean_y, apart)


def simulate(p: Any, values: Any, noise: Any) -> Array:
    """Outputs under given noise [trials, n]: sum p e^eps v / sum p e^eps, one per trial.

    Args:
        p: weights without noise, [n].
        values: v, [n] or [n, d].
        noise: eps, [trials, n].
    """
    weight, v, eps = probabilities_array(p), floats("values", values), floats("noise", noise)
    if v.shape[:1] != weight.shape:
        raise ArgumentError("values", f"of {len(weight)} rows", v.shape)
    if eps.shape[-1:] != weight.shape:
        raise ArgumentError("noise", f"[trials, n] with n = {len(weight)}", eps.shape)
    tilted = weight * np.exp(eps - eps.max(-1, keepdims=True))
    return tilted @ v / tilted.sum(-1).reshape((-1,) + (1,) * (v.ndim - 1))


def draw(kind: str, scale: float, size: Any, rng: np.random.Generator) -> Array:
    """Independent samples of the named law.

    Args:
        kind: "gaussian", "uniform" or "laplace".
        scale: standard deviation, half width or Laplace b.
        size: shape of the result.
        rng: source of random numbers.
    """
    mgf(kind, number("scale", scale))
    sides = floats("size", size)
    if sides.ndim > 1 or not ((sides >= 0) & (sides % 1 == 0)).all():
        raise ArgumentError("size", "a whole number >= 0 or a tuple of them", size)
    shape = sides.astype(int)
    if kind == "gaussian":
        return rng.normal(0.0, scale, shape)
    return (
        rng.uniform(-scale, scale, shape) if kind == "uniform" else rng.laplace(0.0, scale, shape)
    )
