"""What bounded scores can and cannot do: entropy, perturbation and log-sum-exp bounds.

R is always the range max - min of the *scaled* scores of a row (cosine at temperature tau: 2/tau).
"""

import math
from typing import Any

import numpy as np

from attentropy.core.errors import ArgumentError
from attentropy.theory import entropy as _rows
from attentropy.theory._arrays import (
    Array,
    above,
    at_least,
    elementwise,
    floats,
    number,
    probabilities_array,
    require,
)
from attentropy.theory._special import coth_excess, log1p_deficit

UNIT_COSINE_DEFICIT = 0.474474647070527
"""D(2): the most entropy (nats) that cosine scores at temperature 1 can give up, at any n."""


@elementwise
def worst_deficit(range_: Any) -> Any:
    """D(R) = m - 1 - log m, m = R/(1 - e^-R): the largest log n - H over all rows of range R.

    Holds for every n and is approached as n grows; R^2/8 for small R, R - 1 - log R for large.

    Args:
        range_: R, the largest less the smallest scaled score of a row.

    >>> worst_deficit(2.0)
    0.47447464707052...
    """
    at_least("range", range_, 0, finite=False)
    return np.where(np.isinf(range_), np.inf, log1p_deficit(_excess(range_)))


def _excess(range_: Array) -> Array:
    """Return m - 1 = R/(1 - e^-R) - 1."""
    return range_ / 2 + coth_excess(range_ / 2)


@elementwise
def worst_deficit_at(tau: Any) -> Any:
    """D(2/tau): the worst deficit of cosine scores at temperature tau.

    Args:
        tau: temperature of the cosine scores, > 0.

    >>> worst_deficit_at(0.07)
    24.2190213539466...
    """
    above("tau", tau, 0)
    return worst_deficit(2 / tau)


@elementwise
def worst_split(range_: Any) -> Any:
    """(x*, P*): fraction of keys at the top score in the worst row, and the mass they take.

    x* = (m-1)/(e^R - 1), P* = (m-1)/R; at R = 0 every split is equal and (1/2, 1/2) is the limit.

    Args:
        range_: R, the largest less the smallest scaled score of a row.
    """
    at_least("range", range_, 0)
    excess = _excess(range_)
    share = np.where(range_ == 0, 0.5, excess / np.where(range_ == 0, 1.0, range_))
    top = share * range_ * np.exp(-range_) / np.where(range_ == 0, 1.0, -np.expm1(-range_))
    return np.where(range_ == 0, 0.5, top), share


@elementwise
def required_range(n: Any, entropy: Any) -> Any:
    """Smallest R with D(R) = log n - entropy: below it no row of n keys reaches that entropy.

    Args:
        n: number of keys.
        entropy: H to reach, between 0 and log n.

    >>> required_range(1024, 0.5)
    9.70341845727...
    """
    at_least("n", n, 1)
    within_log(n, entropy)
    return _inverse_deficit(np.maximum(np.log(n) - entropy, 0.0))


def within_log(n: Array, entropy: Array) -> None:
    """Raise ArgumentError unless 0 <= entropy <= log n, up to rounding of the logarithm.

    Args:
        n: number of keys.
        entropy: entropies to check.
    """
    ok = (entropy >= 0) & (entropy <= np.log(n) * (1 + 4e-16) + 1e-300)
    require("entropy", "in [0, log n]", np.broadcast_to(entropy, ok.shape), ok)


def _inverse_deficit(deficit: Array) -> Array:
    """Newton from the right on the convex D(R) = deficit."""
    r = np.sqrt(8 * deficit) + deficit + np.log1p(deficit)
    for _ in range(60):
        excess = _excess(r)
        gap = log1p_deficit(excess) - deficit
        step = gap / np.where(r > 0, _slope(r, excess), 1.0)
        r = np.maximum(r - step, 0.0)
        if np.all(np.abs(step) <= 4e-16 * r):
            break
    return r


def _slope(r: Array, excess: Array) -> Array:
    """D'(R) = (m-1)/m * dm/dR, with dm/dR = m/R * (1 - m e^-R)."""
    ratio = np.where(r < 1e-2, 0.5 + r / 6, (1 + excess) / r * (1 - (1 + excess) * np.exp(-r)))
    return excess / (1 + excess) * ratio


@elementwise
def focus_limit(range_: Any) -> Any:
    """e^D(R): above this many keys a row of range R can no longer come near one key.

    Args:
        range_: R, the largest less the smallest scaled score of a row.

    >>> round(focus_limit(16.0))  # QK-norm, head dimension 64, scale 1/8
    204314
    """
    return np.exp(worst_deficit(range_))


@elementwise
def min_entropy(n: Any, range_: Any) -> Any:
    """Smallest entropy of n keys whose scaled scores span R: the best two-level row.

    Args:
        n: number of keys.
        range_: R, the largest less the smallest scaled score of a row.

    >>> min_entropy(256, 2.0)
    5.0707115398...
    """
    return min_entropy_split(n, range_)[0]


@elementwise
def min_entropy_split(n: Any, range_: Any) -> Any:
    """(H_min, k): k keys at the top, n - k at the bottom; H = log k + log1p(q) + R q/(1+q).

    q = (n-k) e^-R / k. The minimum over real k is n x*, so only its neighbours compete.

    Args:
        n: number of keys.
        range_: R, the largest less the smallest scaled score of a row.
    """
    at_least("n", n, 1)
    at_least("range", range_, 0)
    n, range_ = np.broadcast_arrays(n, range_)
    best = n * np.asarray(worst_split(range_)[0])
    floor = np.clip(np.floor(best), 1, n)
    ceil = np.clip(np.ceil(best), 1, n)
    low, high = _two_level(n, floor, range_), _two_level(n, ceil, range_)
    # With many keys the two differ by less than rounding; the curve is a parabola there.
    pick_high = np.where(best > 100, best - floor > 0.5, high < low)
    flat = range_ == 0
    k = np.where(flat, np.maximum(np.floor(n / 2), 1), np.where(pick_high, ceil, floor))
    return np.where(flat, np.log(n), np.where(pick_high, high, low)), k


def _two_level(n: Array, k: Array, r: Array) -> Array:
    q = (n - k) / k * np.exp(-r)
    return np.log(k) + np.log1p(q) + r * q / (1 + q)


@elementwise
def entropy_floor(n: Any, range_: Any) -> Any:
    """max(0, log n - D(R)): the simple lower bound that `min_entropy` sharpens at small n.

    Args:
        n: number of keys.
        range_: R, the largest less the smallest scaled score of a row.
    """
    at_least("n", n, 1)
    return np.maximum(np.log(n) - worst_deficit(range_), 0.0)


@elementwise
def softmax_l1_modulus(eps_inf: Any) -> Any:
    """||softmax(s+e) - softmax(s)||_1 <= 2 tanh(||e||_inf / 2), and no smaller bound holds.

    Args:
        eps_inf: largest absolute change of a score.

    >>> softmax_l1_modulus(0.1)
    0.09991674991575...
    """
    at_least("eps_inf", eps_inf, 0, finite=False)
    return 2 * np.tanh(eps_inf / 2)


@elementwise
def output_perturbation(diameter: Any, noise_range: Any) -> Any:
    """||o' - o|| <= diam(V) tanh(range(e)/4) for any score change e of that range.

    Args:
        diameter: largest distance between two values.
        noise_range: largest less smallest change of a score.
    """
    at_least("diameter", diameter, 0)
    at_least("noise_range", noise_range, 0, finite=False)
    return diameter * np.tanh(noise_range / 4)


_LIPSCHITZ = {("inf", "1"): 1.0, ("2", "2"): 0.5, ("1", "1"): 0.5, ("2", "1"): math.sqrt(0.5)}
_LIPSCHITZ |= {("inf", "inf"): 0.5, ("1", "2"): math.sqrt(0.125), ("1", "inf"): 0.25}


def softmax_lipschitz(source: str, target: str, *, temperature: float = 1.0) -> float:
    """Best constant L with ||softmax(a) - softmax(b)||_target <= L ||a - b||_source.

    inf->1: 1, inf->inf: 1/2, 2->2: 1/2, 1->1: 1/2, 2->1: 1/sqrt 2, 1->2: 1/sqrt 8, 1->inf: 1/4;
    all of them divided by the temperature.

    Args:
        source: norm of the scores: "1", "2" or "inf".
        target: norm of the weights: "1", "2" or "inf".
        temperature: what the scores are divided by.

    >>> softmax_lipschitz("2", "2", temperature=0.1)
    5.0
    """
    above("temperature", number("temperature", temperature), 0)
    known = {f"{a}->{b}": bound for (a, b), bound in _LIPSCHITZ.items()}
    if f"{source}->{target}" not in known:
        raise ArgumentError("source, target", f"one of {', '.join(known)}", f"{source}->{target}")
    return known[f"{source}->{target}"] / temperature


def softmax_inf1_norm(p: Any) -> float:
    """inf->1 norm of diag(p) - p p^T: max over key sets A of 4 P(A)(1 - P(A)), at most 1.

    Exact for up to 36 keys and whenever one key holds half the mass; beyond that the larger
    keys are balanced greedily and only the last 36 exactly, which gives a lower bound whose
    distance to the truth is the square of an imbalance below the smallest weights.

    Args:
        p: probabilities of one row.
    """
    row = probabilities_array(p)
    require("p", "one vector", row.ndim, row.ndim == 1)
    weights = np.sort(row)[::-1]
    if weights[0] >= 0.5:
        # by either side: what is left of 1 has lost the digits that the other keys still have
        sides = (weights[0], weights[1:].sum())
        return float(max(4 * mass * (1 - mass) for mass in sides))
    split = max(0, len(weights) - 36)
    imbalance = 0.0
    for w in weights[:split]:
        imbalance = abs(imbalance - w)
    gap = _closest_partition(weights[split:], imbalance)
    return float((1 - gap) * (1 + gap))


def _closest_partition(weights: Array, offset: float) -> float:
    """Smallest |offset + sum of +-w|, by meeting in the middle."""
    left = np.sort(_signed_sums(weights[::2]) + offset)
    right = _signed_sums(weights[1::2])
    at = np.clip(np.searchsorted(left, right), 1, max(len(left) - 1, 1))
    near = np.minimum(np.abs(left[at - 1] - right), np.abs(left[at % len(left)] - right))
    return float(near.min())


def _signed_sums(weights: Array) -> Array:
    sums = np.zeros(1)
    for w in weights:
        sums = np.concatenate([sums + w, sums - w])
    return sums


@elementwise
def cosine_score_range(scale: Any) -> Any:
    """R <= 2 * scale for cosine scores multiplied by `scale` (= 1/tau).

    Args:
        scale: factor on the cosines.
    """
    at_least("scale", scale, 0)
    return 2 * scale


def qk_norm_range(head_dim: int, scale: float | None = None) -> float:
    """R <= 2 d * scale when q and k are normalised to norm sqrt(d); 2 sqrt(d) by default.

    Args:
        head_dim: d, width of queries and keys.
        scale: factor on q . k; None is 1/sqrt(d).

    >>> qk_norm_range(64)
    16.0
    """
    width = number("head_dim", head_dim)
    at_least("head_dim", width, 1)
    factor = number("scale", width**-0.5 if scale is None else scale)
    at_least("scale", factor, 0)
    return 2 * width * factor


def additive_score_bound(v: Any) -> float:
    """||v||_1: no score v . tanh(...) reaches it, and it is the supremum; the range is below 2x.

    Args:
        v: the vector that weighs the tanh units.
    """
    weights = floats("v", v)
    require("v", "finite", weights, np.isfinite(weights))
    return float(np.abs(weights).sum())


@elementwise
def top_probability_bound(n: Any, range_: Any) -> Any:
    """1/(1 + (n-1) e^-R): the most that one of n keys can get when scores span R.

    Args:
        n: number of keys.
        range_: R, the largest less the smallest scaled score of a row.
    """
    at_least("n", n, 1)
    at_least("range", range_, 0, finite=False)
    return 1 / (1 + (n - 1) * np.exp(-range_))


@elementwise
def dominance_error(n: Any, gap: Any) -> Any:
    """(n-1) e^-gap >= LSE - max and >= 1 - p_max when the best key leads by `gap`.

    Args:
        n: number of keys.
        gap: lead of the best key over all others, in scaled scores.
    """
    at_least("n", n, 1)
    at_least("gap", gap, 0, finite=False)
    return (n - 1) * np.exp(-gap)


lse_bounds = _rows.lse_bounds


@elementwise
def quadratic_deficit(range_: Any) -> Any:
    """R^2/8 >= D(R): the simple (Hoeffding) bound on the deficit, tight for small R.

    Args:
        range_: R, the largest less the smallest scaled score of a row.
    """
    at_least("range", range_, 0, finite=False)
    return range_ * range_ / 8
