"""Sparsity S = E|a| / sqrt(E a^2) of attention weights a = f(q . k) for Gaussian keys.

beta = q . mean(k) and gamma = sigma ||q|| are mean and standard deviation of the scores; small S
means sparse, 1 means all weights are equal. Forms named log_* stay finite where S underflows.
"""

from typing import Any

import numpy as np
from scipy.special import erf, erfcx, ndtr

from attentropy.core.errors import ArgumentError
from attentropy.theory._arrays import (
    Array,
    at_least,
    elementwise,
    finite,
    floats,
    plain,
    require,
    within,
)
from attentropy.theory._special import exp_scaled_square


@elementwise
def log_exp(beta: Any, gamma: Any) -> Any:
    """log S = -gamma^2/2 for f = exp, whatever beta is.

    Args:
        beta: mean of the scores, q . mean(k).
        gamma: standard deviation of the scores, sigma ||q||.
    """
    finite("beta", beta)
    at_least("gamma", gamma, 0)
    return -gamma * gamma / 2 + 0 * beta


@elementwise
def exp(beta: Any, gamma: Any) -> Any:
    """S = e^(-gamma^2/2) for f = exp: the only f here whose sparsity depends on the scale.

    Args:
        beta: mean of the scores, q . mean(k).
        gamma: standard deviation of the scores, sigma ||q||.

    >>> exp(0.0, 2.0)
    0.13533528323661...
    """
    finite("beta", beta)
    at_least("gamma", gamma, 0)
    return exp_scaled_square(gamma, -0.5) + 0 * beta


@elementwise
def log_exp_finite(n: Any, gamma: Any) -> Any:
    """log S of exp weights over n keys, leading order in log n: S never falls below 1/sqrt n.

    -gamma^2/2 up to sqrt(L/2), (gamma - sqrt(2L))^2/2 - L/2 up to sqrt(2L), then -L/2; L = log n.

    Args:
        n: number of keys.
        gamma: standard deviation of the scores, sigma ||q||.
    """
    at_least("n", n, 1)
    at_least("gamma", gamma, 0)
    log_n = np.log(n)
    edge = np.sqrt(2 * log_n)
    middle = (gamma - edge) ** 2 / 2 - log_n / 2
    frozen = np.where(gamma < edge, middle, -log_n / 2)
    return np.where(gamma <= edge / 2, -gamma * gamma / 2, frozen)


def _ratio(beta: Array, gamma: Array) -> Array:
    """beta/gamma; at gamma = 0 its limit +-inf, and NaN where both are 0."""
    finite("beta", beta)
    at_least("gamma", gamma, 0)
    return beta / gamma


@elementwise
def log_relu2(beta: Any, gamma: Any) -> Any:
    """log S for f = relu^2, over the whole plane; -r^2/4 - ... as r = beta/gamma -> -inf.

    At gamma = 0 the limits: 0 for beta > 0, -inf for beta < 0 (every weight is 0), NaN at (0, 0).

    Args:
        beta: mean of the scores, q . mean(k).
        gamma: standard deviation of the scores, sigma ||q||.
    """
    r = np.atleast_1d(np.asarray(_ratio(beta, gamma)))
    out = np.where(r < -1.5, _left(np.minimum(r, -1.5)), np.log(_middle(np.clip(r, -1.5, 2.0))))
    out = np.where(r > 2.0, _right(np.maximum(r, 2.0)), out)
    out = np.where(np.isneginf(r), -np.inf, np.where(np.isnan(r), np.nan, out))
    return out.reshape(np.broadcast_shapes(np.shape(beta), np.shape(gamma)))


@elementwise
def relu2(beta: Any, gamma: Any) -> Any:
    """M2/sqrt(M4): S of f = relu^2, with Phi and phi taken at b/g.

    M2 = (b^2 + g^2) Phi + b g phi, M4 = (b^4 + 6 b^2 g^2 + 3 g^4) Phi + (b^3 g + 5 b g^3) phi.
    1/sqrt 6 at beta = 0; depends on beta/gamma only; towards 0 for beta < 0.

    Args:
        beta: mean of the scores, q . mean(k).
        gamma: standard deviation of the scores, sigma ||q||.

    >>> relu2(-1.0, 2.0)
    0.301481342013...
    """
    r = np.asarray(_ratio(beta, gamma))
    inside = (r >= -1.5) & (r <= 2.0)
    direct = _middle(np.where(inside, r, 0.0))
    return np.where(inside, direct, np.exp(log_relu2(beta, gamma)))


def _middle(r: Array) -> Array:
    """The closed form as it stands: no cancellation for -1.5 <= r <= 2."""
    p, q = ndtr(r), np.exp(-r * r / 2) / np.sqrt(2 * np.pi)
    second = (1 + r * r) * p + r * q
    fourth = (r**4 + 6 * r * r + 3) * p + (r**3 + 5 * r) * q
    return second / np.sqrt(fourth)


def _right(r: Array) -> Array:
    """log S = log1p(M2/r^2 - 1) - log1p(M4/r^4 - 1)/2, r >= 2: accurate while S is nearly 1."""
    i = 1 / r
    miss, q = ndtr(-r), np.exp(-r * r / 2) / np.sqrt(2 * np.pi)
    second = i * i - miss * (1 + i * i) + q * i
    growth = 6 * i * i + 3 * i**4
    fourth = growth - miss * (1 + growth) + q * (i + 5 * i**3)
    return np.log1p(second) - np.log1p(fourth) / 2


def _left(r: Array) -> Array:
    """Backward recurrence for rho_k = Y_k/Y_(k-1), Y_k = e^(z^2) i^k erfc(z), z = -r/sqrt 2.

    log S = log(Y_2)/2 - log(12 rho_3 rho_4)/2 - z^2/2: every factor positive, nothing cancels.
    """
    z = -r / np.sqrt(2)
    rho = {}
    ratio = np.zeros_like(z)
    for k in range(340, 0, -1):
        ratio = 1 / (2 * z + 2 * (k + 1) * ratio)
        rho[k] = ratio
    log_y2 = np.log(erfcx(z)) + np.log(rho[1] * rho[2])
    near = (log_y2 - np.log(12 * rho[3] * rho[4])) / 2 - r * r / 4
    far = -np.log(2 * np.pi) / 4 - np.log(-6 * r) / 2 - r * r / 4
    return np.where(r < -1e9, far, near)


@elementwise
def identity(beta: Any, gamma: Any) -> Any:
    """S = (sqrt(2/pi) e^(-r^2/2) + r erf(r/sqrt 2))/sqrt(1 + r^2), r = |beta/gamma|; f(x) = x.

    Even in beta, never below sqrt(2/pi) = 0.798; 1 at gamma = 0.

    Args:
        beta: mean of the scores, q . mean(k).
        gamma: standard deviation of the scores, sigma ||q||.

    >>> identity(1.0, 1.0)
    0.82493264964715...
    """
    r = np.abs(_ratio(beta, gamma))
    r = np.where(np.isnan(r), np.inf, r)
    far = r > 1e8
    r = np.where(far, 0.0, r)
    value = np.sqrt(2 / np.pi) * np.exp(-r * r / 2) + r * erf(r / np.sqrt(2))
    return np.where(far, 1.0, value / np.hypot(1, r))


@elementwise
def log_identity(beta: Any, gamma: Any) -> Any:
    """log S for f(x) = x; -1/(2 r^2) + ... for large r = |beta/gamma|.

    Args:
        beta: mean of the scores, q . mean(k).
        gamma: standard deviation of the scores, sigma ||q||.
    """
    r = np.abs(_ratio(beta, gamma))
    r = np.where(np.isnan(r), np.inf, r)
    far = -np.log1p(1 / np.maximum(r, 9.0) ** 2) / 2  # erf(9/sqrt 2) is 1
    return np.where(r > 9, far, np.log(identity(beta, gamma)))


@elementwise
def decay(rate: Any, n: Any) -> Any:
    """S of geometric weights 1, lam, ..., lam^(n-1): sqrt(tanh(n x/2)/(n tanh(x/2))), x = -log lam.

    1 at rate 1, 1/sqrt n at rate 0.

    Args:
        rate: lam, the ratio of a weight to the next nearer one, in [0, 1].
        n: number of keys.

    >>> decay(0.9, 100)
    0.4358783166624...
    """
    within("rate", rate, 0, 1)
    at_least("n", n, 1)
    x = -np.where(rate < 0.5, np.log(rate), np.log1p(rate - 1))
    flat = x == 0
    x = np.where(flat, 1.0, x)
    return np.where(flat, 1.0, np.sqrt(np.tanh(n * x / 2) / (n * np.tanh(x / 2))))


@elementwise
def log_decay(rate: Any, n: Any) -> Any:
    """log S of geometric weights.

    Args:
        rate: lam, the ratio of a weight to the next nearer one, in [0, 1].
        n: number of keys.
    """
    return np.log(decay(rate, n))


@elementwise
def decay_bound(rate: Any, n: Any) -> Any:
    """sqrt((1+lam)/(n (1-lam)(1+lam^n))) > S for 0 < lam < 1; inf at 1 (says nothing there).

    Args:
        rate: lam, the ratio of a weight to the next nearer one, in [0, 1].
        n: number of keys.
    """
    within("rate", rate, 0, 1)
    at_least("n", n, 1)
    return np.sqrt((1 + rate) / (n * (1 - rate) * (1 + rate**n)))


@elementwise
def decay_effective_keys(rate: Any) -> Any:
    """(1+lam)/(1-lam): effective number of keys of endless decay; inf at 1.

    Args:
        rate: lam, the ratio of a weight to the next nearer one, in [0, 1].
    """
    within("rate", rate, 0, 1)
    return (1 + rate) / (1 - rate)


def linear(q: Any, mu: Any, covariance: Any) -> float:
    """S = 1/sqrt(1 + q^T Sigma q/(q . mu)^2) for non-negative linear attention; 0 if q . mu = 0.

    Exact for samples too, with their mean and their 1/n covariance.

    Args:
        q: query after the feature map, [d].
        mu: mean of the keys, [d].
        covariance: Sigma of the keys, [d, d].

    >>> linear([1.0, 2.0], [0.5, 0.25], [[1.0, 0.5], [0.5, 2.0]])
    0.28867513459481...
    """
    q, mu, sigma = floats("q", q), floats("mu", mu), floats("covariance", covariance)
    if q.ndim != 1 or not q.size:
        raise ArgumentError("q", "a vector of at least one entry", q)
    if mu.shape != q.shape:
        raise ArgumentError("mu", f"of {len(q)} entries as q", mu)
    if sigma.shape != q.shape * 2:
        raise ArgumentError("covariance", f"[d, d] with d = {len(q)}", sigma.shape)
    for name, value in (("q", q), ("mu", mu), ("covariance", sigma)):
        finite(name, value)
    q = q / (np.abs(q).max() or 1.0)  # S does not depend on the length of q
    variance = q @ sigma @ q
    require("covariance", "positive semidefinite (q^T Sigma q >= 0)", variance, variance >= 0)
    return float(_signal_share(abs(float(q @ mu)), float(np.sqrt(variance))))


def linear_iid(sigma: Any, mu: Any, q: Any) -> Any:
    """S = 1/sqrt(1 + (sigma ||q||_2/(mu ||q||_1))^2) for iid feature components and q >= 0.

    NaN where every weight is 0: for q = 0, and for mu = sigma = 0.

    Args:
        sigma: standard deviation of a component of the keys.
        mu: mean of a component of the keys.
        q: query after the feature map, [d], >= 0.

    >>> linear_iid(0.5, 2.0, [1.0, 2.0, 3.0])
    0.98806436351114...
    """
    vector, noise, signal = floats("q", q), floats("sigma", sigma), floats("mu", mu)
    require("q", "finite and >= 0", vector, (vector >= 0) & np.isfinite(vector))
    if not vector.size:
        raise ArgumentError("q", "a vector of at least one entry", q)
    at_least("sigma", noise, 0)
    at_least("mu", signal, 0)
    vector = vector / (vector.max() or 1.0)  # S does not depend on the length of q
    return _signal_share(signal * vector.sum(), noise * np.linalg.norm(vector))


def _signal_share(signal: Any, noise: Any) -> Any:
    """signal/hypot(signal, noise); undefined (NaN) when both are 0."""
    with np.errstate(invalid="ignore"):
        return plain(np.asarray(signal) / np.hypot(signal, noise))


def empirical(weights: Any) -> Any:
    """S = mean|a|/sqrt(mean a^2) of given weights along the last axis; NaN for all-zero rows.

    Args:
        weights: a, with keys on the last axis.
    """
    a = np.abs(floats("weights", weights))
    if a.ndim == 0 or not a.shape[-1]:
        raise ArgumentError("weights", "a vector (or rows) of at least one weight", weights)
    finite("weights", a)
    top = a.max(-1, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        a = a / top
        return plain(a.mean(-1) / np.sqrt((a * a).mean(-1)))
