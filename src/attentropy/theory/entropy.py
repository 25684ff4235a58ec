"""One row of softmax: entropy, log-sum-exp, collision, sparsity and their gradients.

Keys lie on the last axis; -inf hides a key. With d = s - max s and one maximal key left out,
r = sum e^d, t = sum d e^d and q = sum e^(2d) over the others, everything below is a sum of
terms of one sign, so it keeps full relative accuracy near one-hot and at scores of 1e30.
A row that sees nothing has entropy 0, log-sum-exp -inf, collision 0 and undefined sparsity (NaN).
"""

from typing import Any, NamedTuple

import numpy as np

from attentropy.core.errors import ArgumentError
from attentropy.theory._arrays import (
    Array,
    at_least,
    finite,
    floats,
    plain,
    probabilities_array,
    require,
    scores_array,
)


class Row(NamedTuple):
    """Sums over all keys but one maximal key, and the shifted scores they come from."""

    top: Array
    shifted: Array
    weight: Array
    rest: Array
    tilt: Array
    square: Array


def row(scores: Any) -> Row:
    """r, t, q of every row: the sums that all statistics below are read from.

    Args:
        scores: scaled scores with keys on the last axis; -inf hides a key.
    """
    s = scores_array(scores)
    top = s.max(-1)
    with np.errstate(invalid="ignore", over="ignore"):
        shifted = s - top[..., None]
    shifted = np.where(np.isneginf(s), -np.inf, shifted)
    weight = np.exp(shifted)
    others = weight.copy()
    np.put_along_axis(others, s.argmax(-1)[..., None], 0.0, -1)
    tilt = others * np.where(others == 0, 0.0, shifted)
    return Row(top, shifted, weight, others.sum(-1), tilt.sum(-1), (others * others).sum(-1))


def softmax(scores: Any) -> Array:
    """p = e^(s - max)/sum; zeros where the row sees nothing.

    Args:
        scores: scaled scores with keys on the last axis; -inf hides a key.
    """
    r = row(scores)
    return r.weight / (1 + r.rest)[..., None]


def logsumexp(scores: Any) -> Any:
    """log sum e^s = max + log1p(r).

    Args:
        scores: scaled scores with keys on the last axis; -inf hides a key.

    >>> logsumexp([10000.0, -10000.0])
    10000.0
    """
    r = row(scores)
    return plain(r.top + np.log1p(r.rest))


def lse_bounds(scores: Any) -> Any:
    """(lower, LSE, upper): max(max s, mean s + log n) <= LSE <= max s + log n.

    Args:
        scores: scaled scores with keys on the last axis; -inf hides a key.

    >>> lse_bounds([5.0, -5.0])
    (5.0, 5.0000453988992..., 5.693147180559...)
    """
    s = scores_array(scores)
    log_n = np.log(s.shape[-1])
    top = s.max(-1)
    mean = (s / s.shape[-1]).sum(-1)  # -inf as soon as a key is hidden
    return plain((np.maximum(top, mean + log_n), logsumexp(s), top + log_n))


def entropy(scores: Any) -> Any:
    """H = log1p(r) - t/(1+r), in nats: both terms are >= 0, so nothing cancels.

    Args:
        scores: scaled scores with keys on the last axis; -inf hides a key.

    >>> entropy([1.0, 2.0, 3.0])
    0.832395581839...
    """
    r = row(scores)
    return plain(np.log1p(r.rest) - r.tilt / (1 + r.rest))


def varentropy(scores: Any) -> Any:
    """V = sum p (log p + H)^2 = -dH/dlog(scale): the variance of the surprise, or heat capacity.

    0 for uniform and for one-hot rows.

    Args:
        scores: scaled scores with keys on the last axis; -inf hides a key.

    >>> varentropy([1.0, 2.0, 3.0])
    0.424404544689...
    """
    p, centred = _surprise(scores)
    return plain((p * centred * centred).sum(-1))


def varentropy_gradient(scores: Any) -> Array:
    """dV/ds_j = p_j (y_j^2 + 2 y_j - V) with y = log p + H; 0 at hidden keys; sums to 0.

    Args:
        scores: scaled scores with keys on the last axis; -inf hides a key.
    """
    p, centred = _surprise(scores)
    spread = (p * centred * centred).sum(-1, keepdims=True)
    return p * (centred * centred + 2 * centred - spread)


def _surprise(scores: Any) -> tuple[Array, Array]:
    """p, and log p + H where p > 0."""
    r = row(scores)
    p = r.weight / (1 + r.rest)[..., None]
    mean = (r.tilt / (1 + r.rest))[..., None]
    return p, np.where(p > 0, np.where(p > 0, r.shifted, 0.0) - mean, 0.0)


def log_collision(scores: Any) -> Any:
    """log sum p^2 = log1p(q) - 2 log1p(r) = LSE(2s) - 2 LSE(s); -inf for a row of nothing.

    Args:
        scores: scaled scores with keys on the last axis; -inf hides a key.

    >>> log_collision([50.0, 0.0, 0.0])
    -7.7149993918556...e-22
    """
    r = row(scores)
    value = np.log1p(r.square) - 2 * np.log1p(r.rest)
    return plain(np.where(np.isneginf(r.top), -np.inf, value))


def sparsity(scores: Any, n: Any = None) -> Any:
    """S(p) = 1/sqrt(n sum p^2), in [1/sqrt n, 1]; n counts every key, hidden ones too, by default.

    Args:
        scores: scaled scores with keys on the last axis; -inf hides a key.
        n: number of keys to count; None counts every key, hidden ones too.

    >>> sparsity([1.0, 2.0, 3.0])
    0.80802199916718...
    """
    r = row(scores)
    count = floats("n", r.shifted.shape[-1] if n is None else n)
    at_least("n", count, 1)
    value = (1 + r.rest) / np.sqrt(count * (1 + r.square))
    return plain(np.where(np.isneginf(r.top), np.nan, value))


def deficit(scores: Any) -> Any:
    """KL(p || u) = log n - H over the visible keys, by sums of non-negative terms.

    p log(n p) - p + 1/n is never negative, so nearly uniform rows keep their digits too.

    Args:
        scores: scaled scores with keys on the last axis; -inf hides a key.

    >>> deficit([1000.0, 0.0])
    0.693147180559...
    """
    r = row(scores)
    seen = ~np.isneginf(r.shifted)
    n = np.maximum(seen.sum(-1, keepdims=True), 1)
    p = r.weight / (1 + r.rest)[..., None]
    beyond = _beyond_uniform(r.shifted, n)
    terms = np.where(p > 0, p * np.log(np.where(p > 0, p * n, 1.0)) - p + 1 / n, 1 / n)
    near = (p > 0) & (np.abs(beyond) < 0.1)
    excess = np.where(seen, np.where(near, _near(beyond) / n, terms), 0.0)
    return plain(np.maximum(excess.sum(-1), 0.0))


def _beyond_uniform(shifted: Array, n: Array) -> Array:
    """y = n p - 1 as (e^d - mean e^d)/mean e^d by expm1, so that a tiny y keeps its digits."""
    grown = np.where(np.isneginf(shifted), 0.0, np.expm1(shifted))
    mean = grown.sum(-1, keepdims=True) / n
    return (grown - mean) / (1 + mean)


kl_to_uniform = deficit


def _near(beyond: Array) -> Array:
    """(1 + y) log(1 + y) - y for small y: y^2/2 - y^3/6 + y^4/12 - ... ."""
    y = np.clip(beyond, -0.1, 0.1)
    total = np.zeros_like(y)
    for k in range(18, 1, -1):
        total = total * y + (-1) ** k / (k * (k - 1))
    return total * y * y


def kl_from_uniform(scores: Any) -> Any:
    """KL(u || p) = log mean e^d with d = s - mean s; inf when a key is hidden.

    mean(e^d - 1 - d) has no negative term, so nearly uniform rows keep their digits.

    Args:
        scores: scaled scores with keys on the last axis; -inf hides a key.

    >>> kl_from_uniform([0.0, 1e-8])
    1.25...e-17
    """
    raw = scores_array(scores)
    hidden = np.asarray(np.isneginf(raw).any(-1))
    s = np.where(hidden[..., None], 0.0, raw)
    r = row(s)
    d = r.shifted - r.shifted.mean(-1, keepdims=True)
    with np.errstate(over="ignore"):
        close = np.log1p(_beyond_linear(d).mean(-1))
    far = np.log1p(r.rest) - np.log(s.shape[-1]) - r.shifted.mean(-1)
    return plain(np.where(hidden, np.inf, np.where(d.max(-1) < 700, close, far)))


def _beyond_linear(d: Array) -> Array:
    """e^d - 1 - d, by its series d^2/2 + d^3/6 + ... for small d."""
    small = np.clip(d, -0.5, 0.5)
    total = np.ones_like(small)
    for k in range(16, 2, -1):
        total = 1 + small / k * total
    return np.where(np.abs(d) < 0.5, small * small / 2 * total, np.expm1(d) - d)


def entropy_gradient(scores: Any) -> Array:
    """dH/ds_j = -p_j (log p_j + H) = -p_j (d_j - E_p d); 0 at hidden keys; sums to 0.

    Args:
        scores: scaled scores with keys on the last axis; -inf hides a key.
    """
    p, centred = _surprise(scores)
    return np.where(p > 0, -p * centred, 0.0)


def log_sparsity_gradient(scores: Any) -> Array:
    """d log S/ds_j = p_j (1 - p_j / sum p^2): negative for keys above the collision level.

    Args:
        scores: scaled scores with keys on the last axis; -inf hides a key.
    """
    p = softmax(scores)
    collision = (p * p).sum(-1, keepdims=True)
    return p * (1 - p / np.where(collision == 0, 1.0, collision))


def scale_derivative(scores: Any, scale: Any = 1.0) -> Any:
    """dH/dlam = -lam Var_p(s) at p = softmax(lam s): entropy only falls as the scale grows.

    Args:
        scores: scores before the scale, keys on the last axis; -inf hides a key.
        scale: lam >= 0.

    >>> scale_derivative([1.0, 2.0, 3.0], 1.0)
    -0.424404544689...
    """
    lam = floats("scale", scale)
    at_least("scale", lam, 0)
    raw = scores_array(scores)
    s = np.where(np.isneginf(raw), 0.0, raw)
    with np.errstate(over="ignore"):
        p = softmax(np.where(np.isneginf(raw), -np.inf, s * lam[..., None]))
    offset = np.where(p > 0, s - s.max(-1, keepdims=True), 0.0)
    centred = np.where(p > 0, offset - (p * offset).sum(-1, keepdims=True), 0.0)
    return plain(-lam * (p * centred * centred).sum(-1))


def query_gradient(query: Any, keys: Any, scale: float = 1.0) -> Array:
    """dH/dq = -lam^2 Cov_p(k) q for p = softmax(lam K q).

    Args:
        query: q, [d].
        keys: K, [n, d].
        scale: lam, one number.
    """
    q, k, lam = floats("query", query), floats("keys", keys), floats("scale", scale)
    if k.ndim != 2 or q.shape != k.shape[1:]:
        raise ArgumentError("keys", "of shape [n, d] with query [d]", f"{k.shape}, {q.shape}")
    require("scale", "one finite number", lam, lam.ndim == 0 and np.isfinite(lam))
    finite("query", q)
    finite("keys", k)
    p = softmax(lam * (k @ q))
    centred = k - p @ k
    return -lam * ((centred.T * p) @ (centred @ q) * lam)


def fisher_metric(p: Any) -> Array:
    """diag(p) - p p^T, the Fisher metric in logit coordinates (also the softmax Jacobian).

    Args:
        p: probabilities along the last axis.
    """
    w = probabilities_array(p)
    return w[..., None] * np.eye(w.shape[-1]) - w[..., None] * w[..., None, :]


def euclidean_entropy_gradient(p: Any) -> Array:
    """-log p - 1: the gradient of H in flat coordinates; not tangent to the simplex; inf at 0.

    Args:
        p: probabilities along the last axis.
    """
    w = probabilities_array(p)
    with np.errstate(divide="ignore"):
        return -np.log(w) - 1


def riemannian_entropy_gradient(p: Any) -> Array:
    """-p_i (log p_i + H): the Fisher gradient of H, tangent, and equal to dH/ds_i.

    Args:
        p: probabilities along the last axis.
    """
    w = probabilities_array(p)
    log_p = np.log(np.where(w > 0, w, 1.0))
    return -w * (log_p - (w * log_p).sum(-1, keepdims=True))


def probability_entropy(p: Any) -> Any:
    """-sum p log p with 0 log 0 = 0, of a row that is already normalised.

    Args:
        p: probabilities along the last axis.
    """
    w = probabilities_array(p)
    return plain(-(w * np.log(np.where(w > 0, w, 1.0))).sum(-1))


def geometric_entropy(rate: Any) -> Any:
    """-log(1-lam) - lam log lam/(1-lam): infinite geometric (ALiBi, decay) attention; inf at 1.

    Args:
        rate: lam, the ratio of neighbouring weights, in [0, 1].

    >>> geometric_entropy(0.9)
    3.250829733914...
    """
    lam = floats("rate", rate)
    require("rate", "in [0, 1]", lam, (lam >= 0) & (lam <= 1))
    inner = np.clip(lam, 5e-324, 1 - 1e-16)
    value = -np.log1p(-inner) - inner * np.log(inner) / (1 - inner)
    return plain(np.where(lam == 1, np.inf, np.where(lam == 0, 0.0, value)))


def merge_blocks(blocks: Any, values: Any) -> tuple[float, ...]:
    """(m, l, t, q, o, LSE, H) of a row cut into blocks: states merged one after another.

    l = sum e^(s-m), t = sum (s-m) e^(s-m), q = sum e^(2(s-m)), o the mean of `values` under p.
    An empty or all-hidden block changes nothing.

    Args:
        blocks: scores of each block, a list of lists; -inf hides a key.
        values: one number for each score, in the same shape.
    """
    state: tuple[float, ...] = _EMPTY
    for block, value in zip(*_checked_blocks(blocks, values), strict=True):
        state = _merge(state, _state(block, value))
    m, rest, t, q, o = state
    if np.isneginf(m):
        return (m, 0.0, 0.0, 0.0, 0.0, m, 0.0)
    entropy_ = np.log1p(rest) - t / (1 + rest)
    return tuple(
        float(a) for a in (m, 1 + rest, t, q, o / (1 + rest), m + np.log1p(rest), entropy_)
    )


def _checked_blocks(blocks: Any, values: Any) -> tuple[list[Array], list[Array]]:
    """Rows of scores and of values, as many and as long."""
    for name, rows in (("blocks", blocks), ("values", values)):
        if not np.iterable(rows) or not all(np.iterable(row) for row in rows):
            raise ArgumentError(name, "a list of lists", rows)
    scores = [floats("blocks", row) for row in blocks]
    weighted = [floats("values", row) for row in values]
    if len(scores) != len(weighted):
        raise ArgumentError("values", f"as many as blocks, {len(scores)}", len(weighted))
    for block, value in zip(scores, weighted, strict=True):
        if len(block) != len(value):
            raise ArgumentError("values", "as long as its block", f"{len(value)}, {len(block)}")
    return scores, weighted


_EMPTY = (-np.inf, 0.0, 0.0, 0.0, 0.0)


def _state(s: Array, v: Array) -> tuple[float, ...]:
    """(m, l - 1, t, q, unnormalised o) of one block; l - 1 keeps its digits near one-hot."""
    if s.size == 0 or np.isneginf(scores_array(s, "blocks")).all():
        return _EMPTY
    r = row(s)
    out = (r.weight * np.where(r.weight > 0, v, 0.0)).sum()
    return (float(r.top), float(r.rest), float(r.tilt), 1 + float(r.square), float(out))


def _merge(a: tuple[float, ...], b: tuple[float, ...]) -> tuple[float, ...]:
    if a[0] < b[0]:
        a, b = b, a
    if np.isneginf(b[0]):
        return a
    delta = b[0] - a[0]
    alpha = float(np.exp(delta))
    if alpha == 0:
        return a
    tilt = a[2] + alpha * (b[2] + delta * (1 + b[1]))
    return (
        a[0], a[1] + alpha * (1 + b[1]), tilt, a[3] + alpha * alpha * b[3], a[4] + alpha * b[4]
    )  # fmt: skip
