"""Exact expectations over n iid scores x*g, g ~ N(0,1), for any n and x, in milliseconds.

Draw t ~ Exp(Z) given the scores and a key i ~ softmax, and put u = log t, v = u + x g_i. Then
(u, v) has density n phi(u)^(n-1) e^(v - e^v) N(v; u, x^2) with phi(u) = E exp(-e^(u + x g)), and

    E log Z = -gamma - E[u],   E H = -gamma - E[v],   E sum p^2 = E[e^v]   (gamma = 0.5772...)

and E V = -x dE[H]/dx = x dE[v]/dx, whose integrand is that of E[v] differentiated by x. So
nothing large cancels, whatever the spread. Both integrals are trapezoid sums of
analytic, quickly decaying functions: the error falls exponentially with the step.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr, ndtri

from attentropy.theory._arrays import Array

_STEP = 0.22  # the integrands are analytic in a strip of half width pi/2: error e^(-pi^2/step)
_SMALL = 1e-3
_NEGLIGIBLE = 38.0  # e^-38 is below the rounding of any sum here


class Moments(NamedTuple):
    """E log Z, E H, E sum p^2 and E V of a softmax row of Gaussian scores."""

    log_partition: float
    entropy: float
    collision: float
    varentropy: float


class _Inner(NamedTuple):
    """Integrals over v at each u: 1 - phi, those of 1, v and e^v, and the slopes of three in x."""

    missing: Array
    mass: Array
    first: Array
    collision: Array
    missing_slope: Array
    mass_slope: Array
    first_slope: Array


@lru_cache(maxsize=4096)
def moments(n: float, x: float) -> Moments:
    """The expectations; exact at the ends n = 1 and x = 0."""
    if n == 1:
        return Moments(0.0, 0.0, 1.0, 0.0)
    if x == 0:
        return Moments(float(np.log(n)), float(np.log(n)), 1 / n, 0.0)
    u = _outer_grid(n, x)
    inner = _inner_direct(u, x) if x < 1 else _inner_gumbel(u, x)
    seen = 1 - np.minimum(inner.missing, 1.0)
    with np.errstate(divide="ignore"):  # phi = 0 far right: log -inf, weight 0
        weight = n * np.exp((n - 1) * np.log1p(-np.minimum(inner.missing, 1.0)))
    total = np.dot(weight, inner.mass)  # 1/step up to rounding
    mean = np.dot(weight, inner.first) / total
    bend = -(n - 1) * inner.missing_slope / np.where(seen == 0, 1.0, seen)
    # about the mean, because the slope of the total is 0
    direct = inner.first_slope - mean * inner.mass_slope
    slope = np.dot(weight, direct + bend * (inner.first - mean * inner.mass))
    return Moments(
        float(-np.euler_gamma - np.dot(weight * inner.mass, u) / total),
        float(-np.euler_gamma - mean),
        float(np.dot(weight, inner.collision) / total),
        _small_varentropy(n, x) if x < _SMALL else float(x * slope / total),
    )


def _small_varentropy(n: float, x: float) -> float:
    """Two terms of the series in x, for spreads where the integrand cancels."""
    return (n - 1) / n * x * x * (1 - 3 * x * x / n)


def _outer_grid(n: float, x: float) -> Array:
    """Where n phi^(n-1) E[e^(v - e^v)] is not negligible, as a uniform grid in u."""
    log_n = np.log(n)
    tail = -ndtri(1e-19 / n)
    low = max(-log_n - x * x / 2, -x * tail - log_n) - _NEGLIGIBLE
    half = 0.5 * np.exp(-46 / n)
    high = -x * ndtri(half) + np.log(0.7 + 46 / n)
    if n > 200:
        high = min(high, x * ndtri(75 / n))
    step = _STEP * max(1.0, x / (np.sqrt(2 * log_n) + 4))
    return np.arange(low, high + step + 1, step)


def _inner_direct(u: Array, x: float) -> _Inner:
    """Trapezoid over g itself: right while the Gaussian is the narrow factor."""
    g = np.arange(-9.5, x + 9.5, _STEP)
    density = np.exp(-g * g / 2)
    density /= density.sum()
    v = u[:, None] + x * g
    e = np.exp(v)
    b = np.exp(v - e)
    turned = g * density
    return _Inner(
        missing=(-np.expm1(-e)) @ density,
        mass=b @ density,
        first=(b * v) @ density,
        collision=(b * e) @ density,
        missing_slope=b @ turned,
        mass_slope=(b * (1 - e)) @ turned,
        first_slope=(b * (1 + v - e * v)) @ turned,
    )


def _inner_gumbel(u: Array, x: float) -> _Inner:
    """Trapezoid over v: 1 - phi is the mean of P(x g > v - u) under the Gumbel density of v."""
    # left of its peak the integrand falls like a Gaussian for x^2, then like e^v
    reach = 8.9 * x if x > 8.9 else _NEGLIGIBLE + x * x / 2
    low = min(0.0, u[0] + x * x) - min(reach, 115.0)
    v = np.arange(low, 4.4, _STEP)
    e = np.exp(v)
    b = _STEP * np.exp(v - e)
    z = (v - u[:, None]) / x
    density = np.exp(-z * z / 2) / (x * np.sqrt(2 * np.pi))
    return _Inner(
        missing=ndtr(-z) @ b,
        mass=density @ b,
        first=density @ (b * v),
        collision=density @ (b * e),
        missing_slope=(density * z) @ b,
        mass_slope=(density * (z * z - 1)) @ b / x,
        first_slope=(density * (z * z - 1)) @ (b * v) / x,
    )
