"""Attention rows of n iid Gaussian scores: exact entropy, its phases, the scale that holds it.

`spread` (x in formulas) is the standard deviation of the scaled scores within a row.
Entropies are in nats. Every function broadcasts; scalars in give a float out.
"""

import math
from typing import Any

import numpy as np
from scipy import special
from scipy.optimize import brentq

from attentropy.core.errors import ArgumentError
from attentropy.theory import populations
from attentropy.theory._arrays import Array, above, at_least, elementwise, floats, number, require
from attentropy.theory._quadrature import moments
from attentropy.theory._special import exp_scaled_square
from attentropy.theory.bounds import within_log

sphere_deficit = populations.sphere_deficit
sphere_freezing_scale = populations.sphere_freezing_scale
uniform_deficit = populations.uniform_deficit


@elementwise
def expected_entropy(n: Any, spread: Any) -> Any:
    """E[H] of softmax(x g), g iid N(0,1): exact for any n >= 1 and spread >= 0.

    Args:
        n: number of keys.
        spread: x, the standard deviation of the scaled scores of a row.

    >>> expected_entropy(1024, 1.0)
    6.43327048520...
    """
    return _moment(n, spread, "entropy")


@elementwise
def expected_log_partition(n: Any, spread: Any) -> Any:
    """E[log sum e^(x g)], the quenched free energy; at most log n + x^2/2.

    Args:
        n: number of keys.
        spread: x, the standard deviation of the scaled scores of a row.

    >>> expected_log_partition(1024, 2.0)
    8.9124276512...
    """
    return _moment(n, spread, "log_partition")


@elementwise
def expected_collision(n: Any, spread: Any) -> Any:
    """E[sum p^2]: e^(x^2)/n for small spread, 1 - sqrt(2 log n)/x deep in the frozen phase.

    Args:
        n: number of keys.
        spread: x, the standard deviation of the scaled scores of a row.

    >>> expected_collision(1024, 2.0)
    0.028538204684...
    """
    return _moment(n, spread, "collision")


@elementwise
def expected_varentropy(n: Any, spread: Any) -> Any:
    """E[V] = -dE[H]/dlog x, the heat capacity: x^2 for small spread; exact for any n and spread.

    Args:
        n: number of keys.
        spread: x, the standard deviation of the scaled scores of a row.

    >>> expected_varentropy(1024, 1.0)
    0.99219778...
    """
    return _moment(n, spread, "varentropy")


def _moment(n: Array, spread: Array, name: str) -> Array:
    at_least("n", n, 1)
    at_least("spread", spread, 0)
    n, spread = np.broadcast_arrays(n, spread)
    pairs = zip(n.flat, spread.flat, strict=True)
    return np.array([getattr(moments(float(a), float(x)), name) for a, x in pairs]).reshape(n.shape)


@elementwise
def expected_deficit(n: Any, spread: Any) -> Any:
    """log n - E[H], with full relative accuracy at small spread: x^2 (n-1)/(2n) - ... .

    Args:
        n: number of keys.
        spread: x, the standard deviation of the scaled scores of a row.
    """
    deficit = np.log(n) - expected_entropy(n, spread)
    return np.where(spread < 3e-3, _small_spread_deficit(n, spread), deficit)


def _small_spread_deficit(n: Array, x: Array) -> Array:
    """Two terms of the cumulant series of a finite Gaussian sample."""
    return x * x * (n - 1) / (2 * n) - 0.75 * (n - 1) / (n * n) * x**4


@elementwise
def second_order_entropy(n: Any, spread: Any) -> Any:
    """log n - x^2/2 + [x^2 e^(x^2) - (e^(x^2) - 1)/2]/n: good while e^(x^2) << n; inf far beyond.

    Args:
        n: number of keys.
        spread: x, the standard deviation of the scaled scores of a row.

    >>> second_order_entropy(1024, 1.0)
    6.43328737289...
    """
    at_least("n", n, 1)
    at_least("spread", spread, 0)
    square = spread * spread
    growth = np.where(spread < 1, np.expm1(square), exp_scaled_square(spread, 1.0) - 1)
    correction = (square - 0.5) * growth + square
    return np.where(np.isinf(growth), np.inf, np.log(n) - square / 2 + correction / n)


@elementwise
def freezing_spread(n: Any) -> Any:
    """sqrt(2 log n): beyond it a few keys carry the row (n -> infinity).

    Args:
        n: number of keys.

    >>> freezing_spread(1024)
    3.72329...
    """
    at_least("n", n, 1)
    return np.sqrt(2 * np.log(n))


@elementwise
def entropy_limit(n: Any, spread: Any) -> Any:
    """Leading order in n: log n - x^2/2 up to the freezing spread, psi(1) - psi(1 - x_c/x) beyond.

    The second branch diverges at x_c, where the exact entropy is smooth: see `expected_entropy`.

    Args:
        n: number of keys.
        spread: x, the standard deviation of the scaled scores of a row.

    >>> entropy_limit(1000000, 5.0)
    1.3155105579...
    """
    at_least("n", n, 1)
    at_least("spread", spread, 0)
    critical = freezing_spread(n)
    frozen = spread > critical
    m = critical / np.where(frozen, spread, np.inf)
    return np.where(frozen, frozen_entropy(m), np.log(n) - spread * spread / 2)


_ZETA = special.zeta(np.arange(2.0, 62.0))


@elementwise
def frozen_entropy(m: Any) -> Any:
    """psi(1) - psi(1-m): mean entropy of Poisson-Dirichlet weights, m = x_c/x; inf at m = 1.

    Args:
        m: freezing spread over spread, in [0, 1].

    >>> frozen_entropy(0.5)
    1.38629436111...
    """
    require("m", "in [0, 1]", m, (m >= 0) & (m <= 1))
    small = np.minimum(m, 0.5)
    series = np.zeros_like(small)
    for zeta in _ZETA[::-1]:
        series = (series + zeta) * small
    far = -np.euler_gamma - special.digamma(1 - np.where(m == 1, 0.5, m))
    return np.where(m == 1, np.inf, np.where(m < 0.5, series, far))


@elementwise
def frozen_varentropy(m: Any) -> Any:
    """m psi'(1-m), mean varentropy of Poisson-Dirichlet weights, m = x_c/x; inf at m = 1.

    Args:
        m: freezing spread over spread, in [0, 1].

    >>> frozen_varentropy(0.5)
    2.46740110027...
    """
    require("m", "in [0, 1]", m, (m >= 0) & (m <= 1))
    return np.where(m == 1, np.inf, m * special.polygamma(1, 1 - np.where(m == 1, 0.5, m)))


@elementwise
def varentropy_limit(n: Any, spread: Any) -> Any:
    """Leading order in n: x^2 up to the freezing spread, m psi'(1-m) with m = x_c/x beyond.

    At x_c the heat capacity falls from 2 log n to a number that does not grow with n.

    Args:
        n: number of keys.
        spread: x, the standard deviation of the scaled scores of a row.

    >>> varentropy_limit(1000000, 10.0)
    2.83897...
    """
    at_least("n", n, 1)
    at_least("spread", spread, 0)
    critical = freezing_spread(n)
    frozen = spread > critical
    m = critical / np.where(frozen, spread, np.inf)
    return np.where(frozen, frozen_varentropy(m), spread * spread)


@elementwise
def frozen_collision(m: Any) -> Any:
    """1 - m: mean sum p^2 of Poisson-Dirichlet weights.

    Args:
        m: freezing spread over spread, in [0, 1].
    """
    require("m", "in [0, 1]", m, (m >= 0) & (m <= 1))
    return 1 - m


@elementwise
def expected_max(n: Any) -> Any:
    """E max of n iid N(0,1), exact: the integral of t d Phi(t)^n.

    Args:
        n: number of draws.

    >>> expected_max(1000)
    3.24143576913...
    """
    at_least("n", n, 1)
    t = np.arange(-14, 40, 0.004)  # 37.5 is the mean for the largest n that a float holds
    log_cdf, log_density = special.log_ndtr(t), -t * t / 2 - 0.5 * np.log(2 * np.pi)
    flat = n.reshape(-1, 1)
    weight = np.exp(np.log(flat) + (flat - 1) * log_cdf + log_density)
    mean = (weight @ t) / weight.sum(-1)
    return np.where(n == 1, 0.0, mean.reshape(n.shape))


@elementwise
def expected_max_two_term(n: Any) -> Any:
    """a - (log log n + log 4 pi - 2 gamma)/(2a), a = sqrt(2 log n): 0.3 % high at n = 1e6.

    Args:
        n: number of draws, > 1.

    >>> expected_max_two_term(100)
    2.5564503066...
    """
    above("n", n, 1)
    a = np.sqrt(2 * np.log(n))
    return a - (np.log(np.log(n)) + np.log(4 * np.pi) - 2 * np.euler_gamma) / (2 * a)


@elementwise
def scale_for_entropy(n: Any, entropy: Any) -> Any:
    """The spread x with E[H] = entropy: inverse of `expected_entropy`; inf at entropy 0.

    Args:
        n: number of keys.
        entropy: H to reach on average, between 0 and log n.

    >>> scale_for_entropy(64, 2.0)
    2.7270344286...
    """
    at_least("n", n, 1)
    within_log(n, entropy)
    n, entropy = np.broadcast_arrays(n, entropy)
    pairs = zip(n.flat, entropy.flat, strict=True)
    return np.array([_spread(float(a), float(h)) for a, h in pairs]).reshape(n.shape)


def _spread(n: float, entropy: float) -> float:
    deficit = math.log(n) - entropy
    if deficit <= 0:
        return 0.0
    if entropy == 0:
        return math.inf
    low = math.sqrt(2 * deficit)  # E[H] >= log n - x^2/2, so the answer lies above

    def gap(log_x: float) -> float:
        return float(expected_deficit(n, math.exp(log_x))) - deficit

    a = b = math.log(low)
    while gap(a) > 0:
        a -= 0.1
    width = 0.25
    while gap(b) < 0:
        a, b = b, b + width
        width *= 2
    root, _ = brentq(gap, a, b, xtol=1e-13, rtol=8.9e-16, full_output=True)
    return math.exp(root)


@elementwise
def hold_entropy_spread(n: Any, n0: Any, spread0: Any) -> Any:
    """The spread at n keys whose E[H] equals that of `spread0` at n0 keys, exactly.

    `entropy_rule` is its closed-form approximation. The answer is 0, a uniform row, if n keys
    cannot hold that much entropy (log n below it).

    Args:
        n: number of keys to hold the entropy at.
        n0: number of keys at the reference.
        spread0: spread at the reference.

    >>> hold_entropy_spread(65536, 1024, 2.0)
    3.7...
    """
    at_least("n", n, 1)
    at_least("n0", n0, 1)
    at_least("spread0", spread0, 0)
    entropy = np.asarray(expected_entropy(n0, spread0))
    return scale_for_entropy(n, np.minimum(entropy, np.log(n)))


@elementwise
def entropy_rule(spread0: Any, n0: Any, n: Any) -> Any:
    """sqrt(x0^2 + 2 log(n/n0)): keeps log n - x^2/2 constant; 0 where that would need x^2 < 0.

    Args:
        spread0: x0, spread at the reference.
        n0: number of keys at the reference.
        n: number of keys to hold the entropy at.

    >>> entropy_rule(2.0, 1024, 65536)
    3.50966752937...
    """
    at_least("spread0", spread0, 0)
    at_least("n0", n0, 1)
    at_least("n", n, 1)
    return np.sqrt(np.maximum(spread0 * spread0 + 2 * np.log(n / n0), 0.0))


@elementwise
def local_exponent(n: Any, deficit: Any) -> Any:
    """log n / (2 deficit): the a for which scale ~ (log n)^a holds the entropy near n.

    1 (the log n rule) where H = log(n)/2, 1/2 near freezing, large for nearly uniform rows;
    inf at deficit 0.

    Args:
        n: number of keys.
        deficit: log n - H.
    """
    at_least("n", n, 1)
    at_least("deficit", deficit, 0)
    return np.where(deficit == 0, np.inf, np.log(n) / (2 * np.where(deficit == 0, 1.0, deficit)))


@elementwise
def planted_mass(scale: Any, n: Any, margin: Any, sigma: Any = 1.0) -> Any:
    """1/(1 + exp(log n + scale^2 sigma^2/2 - scale * margin)): mass of one key above a bulk.

    The bulk is n scores N(0, sigma^2), the key sits `margin` above their mean; annealed, so
    right while scale * sigma < sqrt(2 log n).

    Args:
        scale: factor on all scores.
        n: number of keys in the bulk.
        margin: score of the planted key less the mean of the bulk.
        sigma: standard deviation of the bulk.

    >>> planted_mass(2.0, 4096, 5.71)
    0.75067842463...
    """
    at_least("scale", scale, 0)
    at_least("n", n, 1)
    at_least("sigma", sigma, 0)
    require("margin", "finite", margin, np.isfinite(margin))
    return special.expit(scale * margin - scale * scale * sigma * sigma / 2 - np.log(n))


@elementwise
def best_scale(margin: Any, sigma: Any = 1.0) -> Any:
    """margin/sigma^2: the scale that maximises `planted_mass`, whatever n is.

    Args:
        margin: score of the planted key less the mean of the bulk.
        sigma: standard deviation of the bulk.
    """
    at_least("margin", margin, 0)
    above("sigma", sigma, 0)
    return margin / (sigma * sigma)


@elementwise
def retrieval_threshold(n: Any, sigma: Any = 1.0) -> Any:
    """sigma sqrt(2 log n): below this margin no scale finds the planted key.

    Args:
        n: number of keys in the bulk.
        sigma: standard deviation of the bulk.
    """
    at_least("sigma", sigma, 0)
    return sigma * np.asarray(freezing_spread(n))


RULES = ("constant", "sqrt_log", "log", "hold", "exact")
"""The scale rules that `spread_under` and `drift_table` compare."""


def spread_under(rule: str, *, spread0: float, n0: float, n: float) -> float:
    """Spread at n keys when the scale follows `rule` and gave spread0 at n0 keys.

    constant: x0; sqrt_log: x0 sqrt(log n/log n0); log: x0 log n/log n0;
    hold: sqrt(x0^2 + 2 log(n/n0)); exact: `hold_entropy_spread`.

    Args:
        rule: one of RULES.
        spread0: x0, spread at the reference.
        n0: number of keys at the reference, > 1.
        n: number of keys.
    """
    if rule not in RULES:
        raise ArgumentError("rule", f"one of {', '.join(RULES)}", rule)
    above("n0", number("n0", n0), 1)
    at_least("n", number("n", n), 1)
    at_least("spread0", number("spread0", spread0), 0)
    growth = math.log(n) / math.log(n0)
    match rule:
        case "constant":
            return spread0
        case "sqrt_log":
            return spread0 * math.sqrt(growth)
        case "log":
            return spread0 * growth
        case "hold":
            return float(entropy_rule(spread0, n0, n))
    return float(hold_entropy_spread(n, n0, spread0))


def drift_table(
    lengths: Any, *, spread0: float, n0: float, rules: tuple[str, ...] = RULES
) -> dict[str, Array]:
    """E[H] at each length under each scale rule, all calibrated at n0 with spread0.

    Args:
        lengths: numbers of keys.
        spread0: spread at the reference.
        n0: number of keys at the reference.
        rules: names of RULES.

    >>> drift_table([8192], spread0=2.0, n0=1024, rules=("log",))["log"]
    array([5.79...])
    """
    sizes = np.atleast_1d(floats("lengths", lengths))
    if sizes.ndim > 1:
        raise ArgumentError("lengths", "one list of numbers", lengths)
    at_least("lengths", sizes, 1)
    if isinstance(rules, str) or not np.iterable(rules):
        raise ArgumentError("rules", f"a tuple of {', '.join(RULES)}", rules)
    spreads = {r: [spread_under(r, spread0=spread0, n0=n0, n=k) for k in sizes] for r in rules}
    return {rule: np.asarray(expected_entropy(sizes, x)) for rule, x in spreads.items()}
