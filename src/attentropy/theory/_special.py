"""Elementary functions that lose digits when written the obvious way."""

import numpy as np
from scipy import special

from attentropy.theory._arrays import Array

_K = np.arange(1, 21)
_BERNOULLI = special.bernoulli(40)[2::2] / special.factorial(2 * _K)  # B_2k / (2k)!


def _even_series(coefficients: Array, x: Array) -> Array:
    """Sum of coefficients[k-1] * x^(2k), k = 1, 2, ..."""
    square = x * x
    total = np.zeros_like(square)
    for c in coefficients[::-1]:
        total = (total + c) * square
    return total


def coth_excess(z: Array) -> Array:
    """Return z coth z - 1 for z >= 0, with full relative accuracy: z^2/3 - z^4/45 + ... ."""
    near = _even_series(_BERNOULLI, 2 * np.minimum(z, 1.0))
    return np.where(z < 1, near, np.maximum(z, 1.0) / np.tanh(np.maximum(z, 1.0)) - 1)


def log_sinhc(z: Array) -> Array:
    """log(sinh z / z) for z >= 0: z^2/6 - z^4/180 + ... ."""
    near = _even_series(_BERNOULLI / (2 * _K), 2 * np.minimum(z, 1.0))
    far = np.maximum(z, 1.0)
    return np.where(z < 1, near, far + np.log1p(-np.exp(-2 * far)) - np.log(2 * far))


def log1p_deficit(y: Array) -> Array:
    """Return y - log(1 + y) for y >= 0: y^2/2 - y^3/3 + ... .

    With z = y/(2+y): log1p(y) = 2 atanh(z), hence y z - 2 z^3 (1/3 + z^2/5 + ...).
    """
    small = np.minimum(y, 0.5)
    z = small / (2 + small)
    tail = np.zeros_like(z)
    for k in range(14, 0, -1):
        tail = tail * z * z + 1 / (2 * k + 1)
    return np.where(y < 0.5, z * (small - 2 * z * z * tail), y - np.log1p(y))


def exp_scaled_square(x: Array, factor: float) -> Array:
    """exp(factor * x^2), factor a power of two up to sign, without the rounding error of x^2.

    x*x is split exactly into a rounded square and its remainder (Dekker).
    """
    square = x * x
    c = 134217729.0 * x
    high = c - (c - x)
    low = x - high
    rest = ((high * high - square) + 2 * high * low) + low * low
    rest = np.where(np.isfinite(rest) & (np.abs(square) < 1e6), rest, 0.0)
    return np.exp(factor * square) * (1 + factor * rest)
