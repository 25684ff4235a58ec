"""Entropy deficits of infinitely many keys with bounded scores: uniform and spherical.

With K(lam) = log E e^(lam s), the deficit of the tilted population is lam K' - K.
"""

from typing import Any

import numpy as np
from scipy.special import gammaln

from attentropy.theory._arrays import at_least, elementwise
from attentropy.theory._special import coth_excess, log_sinhc

_WIDE = 20_000  # sqrt(nu^2 + lam^2) from which three terms of Debye's series are exact
# of (nu/w)^(2k), (nu/w)^(2k-2), ..., 1 in U_k and V_k (w/nu)^k, for k = 1, 2, 3
_DEBYE_U = (
    np.array([-5, 3]) / 24,
    np.array([385, -462, 81]) / 1152,
    np.array([-425425, 765765, -369603, 30375]) / 414720,
)
_DEBYE_V = (
    np.array([7, -9]) / 24,
    np.array([-455, 594, -135]) / 1152,
    np.array([475475, -883575, 451737, -42525]) / 414720,
)


@elementwise
def uniform_deficit(range_: Any) -> Any:
    """log R - 1 + R/(e^R - 1) - log(1 - e^-R) for scores uniform on a scaled width R.

    R^2/24 for small R, log R - 1 for large: a uniform row needs scale ~ n to stay focused.

    Args:
        range_: R, scaled width of the interval.

    >>> uniform_deficit(2.0)
    0.1515959239281...
    """
    at_least("range", range_, 0, finite=False)
    small = np.minimum(range_, 2.0) / 2
    r = np.maximum(range_, 2.0)
    far = np.log(r) - 1 + np.where(r < 700, r / np.expm1(r), 0.0) - np.log1p(-np.exp(-r))
    return np.where(range_ < 2, coth_excess(small) - log_sinhc(small), far)


@elementwise
def sphere_deficit(d: Any, scale: Any) -> Any:
    """Deficit of scale * cosine between a query and uniformly random unit keys in R^d.

    E e^(lam c) = 0F1(d/2; lam^2/4); lam^2/(2d) for small lam.

    Args:
        d: width of the unit vectors.
        scale: lam, factor on the cosines.

    >>> sphere_deficit(64, 24.0)
    3.78272190617...
    """
    at_least("d", d, 1)
    at_least("scale", scale, 0)
    d, scale = np.broadcast_arrays(d, scale)
    pairs = zip(d.flat, scale.flat, strict=True)
    return np.array([_sphere(float(a), float(lam)) for a, lam in pairs]).reshape(d.shape)


def _sphere(d: float, lam: float) -> float:
    """Terms (lam^2/4)^k / (k! (d/2)_k) of 0F1, in a window around the largest.

    lam K' is the mean of 2k under these weights, so both parts come from one sum.
    """
    if lam == 0:
        return 0.0
    if d == 1:
        return _two_keys(lam)
    nu = d / 2 - 1
    if lam > 500 and nu * nu < 4 * lam:
        return _sphere_far(nu, lam)
    # (sqrt(nu^2 + lam^2) - nu) / 2, which would cancel beside a large nu
    w = np.hypot(nu, lam)
    peak = int(lam * (lam / (w + nu)) / 2) if nu >= 0 else int(lam / 2)
    if w > _WIDE and peak > 400:  # below, the window starts at the exact term 1
        return _sphere_wide(nu, lam)
    half = int(14 * np.sqrt(peak)) + 80
    k = np.arange(max(0, peak - half), peak + half, dtype=float)
    steps = 2 * np.log(lam / 2) - np.log(k[1:]) - np.log(d / 2 + k[1:] - 1)
    log_t = np.concatenate([[0.0], np.cumsum(steps)])
    log_t -= log_t[peak - int(k[0])]
    t = np.exp(log_t)
    if k[0] == 0:  # keep the leading 1 apart: the sum may exceed it by little
        log_first = -log_t[0]
        rest = np.exp(log_t[1:] + log_first).sum()
        log_sum = np.log1p(rest) if np.isfinite(rest) else np.log(t.sum()) + log_first
    else:
        log_sum = np.log(t.sum()) + _log_term(peak, d, lam)
    return float(2 * np.dot(k, t) / t.sum() - log_sum)


def _two_keys(lam: float) -> float:
    """lam tanh lam - log cosh lam: cosines in R^1 are +-1, so this goes to log 2 and stays there.

    With t = tanh lam it is sum t^(2k)/(2k(2k-1)), and log 2 less log(1+u) + 2 lam u/(1+u) with
    u = e^(-2 lam): each form without cancellation where it is used.
    """
    if lam < 0.5:
        square, k = float(np.tanh(lam)) ** 2, np.arange(30, 0, -1)
        return float(np.polyval(1 / (2 * k * (2 * k - 1)), square) * square)
    u = float(np.exp(-2 * lam))
    return float(np.log(2) - (np.log1p(u) + 2 * lam * (u / (1 + u))))


def _sphere_far(nu: float, lam: float) -> float:
    """From I_nu(lam) = e^lam/sqrt(2 pi lam) A(lam), A Hankel's series in 1/lam: e^lam cancels."""
    term, series, slope = 1.0, 1.0, 0.0
    for k in range(1, 40):
        term *= -(4 * nu * nu - (2 * k - 1) ** 2) / (8 * k * lam)
        series += term
        slope -= k * term
        if abs(term) < 1e-18:
            break
    constant = gammaln(nu + 1) + nu * np.log(2 / lam) - np.log(2 * np.pi * lam) / 2
    return float(slope / series - nu - 0.5 - constant - np.log(series))


def _sphere_wide(nu: float, lam: float) -> float:
    """From Debye's series of I_nu and its derivative in 1/w, w = sqrt(nu^2 + lam^2).

    w (V/U - 1) + nu log((nu + w)/(2 nu)) + log(w/nu)/2 - log U, less what log Gamma(nu + 1) has
    beyond Stirling; U and V have polynomials in (nu/w)^2 as coefficients.
    """
    w = float(np.hypot(nu, lam))
    series, bend = 0.0, 0.0
    for k in range(len(_DEBYE_U), 0, -1):
        u, v = (float(np.polyval(c[k - 1], (nu / w) ** 2)) for c in (_DEBYE_U, _DEBYE_V))
        series, bend = (series + u) / w, bend / w + (v - u)
    rise = nu * np.log1p(lam * (lam / (w + nu)) / (2 * nu)) + np.log(w / nu) / 2
    square = nu * nu
    beyond = (1 - (1 - 2 / (7 * square)) / (30 * square)) / (12 * nu)
    return float(bend / (1 + series) + rise - beyond - np.log1p(series))


def _log_term(k: int, d: float, lam: float) -> float:
    return float(2 * k * np.log(lam / 2) - gammaln(k + 1) - (gammaln(d / 2 + k) - gammaln(d / 2)))


@elementwise
def sphere_freezing_scale(d: Any, n: Any) -> Any:
    """d n^(2/d) sqrt(1 - n^(-2/d)): where n random cosine keys freeze; sqrt(2 d log n) if small.

    Args:
        d: width of the unit vectors.
        n: number of keys.

    >>> sphere_freezing_scale(64, 65536)
    48.983479342...
    """
    at_least("d", d, 1)
    at_least("n", n, 1)
    exponent = 2 * np.log(n) / d
    return d * np.exp(exponent) * np.sqrt(-np.expm1(-exponent))
