"""What an initialisation does to attention: gains, score variance, spectra, costs."""

import math
from typing import Any, NamedTuple

import numpy as np

from attentropy.core.errors import ArgumentError
from attentropy.theory import cost
from attentropy.theory._arrays import Array, at_least, finite, floats, number, plain, require

attention_cost = cost.attention_cost
crossover_length = cost.crossover_length

SCHEMES = ("xavier", "lecun", "he", "packed", "gpt2")


class Gains(NamedTuple):
    """Variance factors of a projection, and the variance of the scaled score q . k/sqrt(d_k)."""

    forward: float
    backward: float
    score: float


def _check_dims(**dims: float) -> None:
    for name, value in dims.items():
        at_least(name, number(name, value), 1)


def weight_variance(scheme: str, d_in: int, d_out: int) -> float:
    """Variance of one weight.

    xavier 2/(d_in + d_out), lecun 1/d_in, he 2/d_in, gpt2 0.02^2, packed 2/(d_in + 3 d_in): torch's
    MultiheadAttention initialises q, k, v as one [3d, d] matrix.

    Args:
        scheme: one of SCHEMES.
        d_in: width of the input.
        d_out: width of the output.

    >>> weight_variance("packed", 512, 64)
    0.0009765625
    """
    _check_dims(d_in=d_in, d_out=d_out)
    if scheme not in SCHEMES:
        raise ArgumentError("scheme", f"one of {', '.join(SCHEMES)}", scheme)
    return {
        "xavier": 2 / (d_in + d_out),
        "lecun": 1 / d_in,
        "he": 2 / d_in,
        "packed": 2 / (4 * d_in),
        "gpt2": 4e-4,
    }[scheme]


def gains(scheme: str, d_in: int, d_out: int, *, input_variance: float = 1.0) -> Gains:
    """Forward d_in var(w), backward d_out var(w), score variance (forward * input variance)^2.

    The score row assumes independent, centred q and k and the scale 1/sqrt(d_out).

    Args:
        scheme: one of SCHEMES.
        d_in: width of the input.
        d_out: width of the output.
        input_variance: variance of an entry of the input.

    >>> gains("xavier", 512, 64)
    Gains(forward=1.777..., backward=0.222..., score=3.160...)
    """
    variance = weight_variance(scheme, d_in, d_out)
    at_least("input_variance", number("input_variance", input_variance), 0)
    forward, backward = d_in * variance, d_out * variance
    score = forward * input_variance
    return Gains(forward, backward, score * score)


def xavier_gain(d_in: int, d_out: int) -> Gains:
    """[2 d_in/(d_in+d_out), 2 d_out/(d_in+d_out), first^2] for unit-variance inputs.

    Args:
        d_in: width of the input.
        d_out: width of the output.
    """
    _check_dims(d_in=d_in, d_out=d_out)
    forward, backward = 2 * d_in / (d_in + d_out), 2 * d_out / (d_in + d_out)
    return Gains(forward, backward, forward * forward)


def score_variance(d: int, sigma: float, mu: float = 0.0, *, scale: float | None = None) -> float:
    """scale^2 d (sigma^4 + 2 mu^2 sigma^2): variance of q . k for independent entries of q and k.

    Entries have mean mu and standard deviation sigma; scale None is 1/sqrt(d). The mean is d mu^2.

    Args:
        d: width of queries and keys.
        sigma: standard deviation of an entry.
        mu: mean of an entry.
        scale: factor on q . k; None is 1/sqrt(d).

    >>> score_variance(64, 1.0, scale=1.0)
    64.0
    """
    _check_dims(d=d)
    at_least("sigma", number("sigma", sigma), 0)
    finite("mu", number("mu", mu))
    finite("scale", number("scale", 1.0 if scale is None else scale))
    if sigma == 0 or scale == 0:
        return 0.0
    factor = 1 / d if scale is None else scale * scale
    square = float(sigma) * sigma  # products overflow to inf, powers of floats would raise
    return factor * d * square * (square + 2 * float(mu) * mu)


def row_spread(query: Any, sigma: Any, scale: Any) -> Any:
    """scale sigma ||q||: standard deviation of the scores of one row, for a fixed query.

    Args:
        query: q, one vector.
        sigma: standard deviation of an entry of the keys.
        scale: factor on q . k.
    """
    q, width, factor = floats("query", query), floats("sigma", sigma), floats("scale", scale)
    finite("query", q)
    at_least("sigma", width, 0)
    finite("scale", factor)
    with np.errstate(over="ignore"):
        return plain(abs(factor) * width * np.linalg.norm(q))


def head_dim_choices(d_model: int) -> list[tuple[int, int, float]]:
    """(heads, d_k, xavier score variance) for every power of two of heads that divides d_model.

    Args:
        d_model: width of the model.
    """
    _check_dims(d_model=d_model)
    require("d_model", "a whole number", d_model, d_model % 1 == 0)
    heads = [2**k for k in range(int(math.log2(d_model)) + 1) if d_model % 2**k == 0]
    return [(h, d_model // h, xavier_gain(d_model, d_model // h).score) for h in heads]


def singular_values(matrix: Any) -> Array:
    """Singular values, largest first.

    Args:
        matrix: [rows, columns].
    """
    m = floats("matrix", matrix)
    if m.ndim != 2 or not m.size:
        raise ArgumentError("matrix", "two-dimensional and not empty", m.shape)
    finite("matrix", m)
    return np.asarray(np.linalg.svd(m, compute_uv=False))


def effective_rank(matrix: Any) -> float:
    """exp of the entropy of the normalised singular values: 1 for rank one, n for the identity.

    Args:
        matrix: [rows, columns], not all zero.
    """
    s = singular_values(matrix)
    if not s.sum():
        return 0.0
    p = s / s.sum()
    return float(np.exp(-(p * np.log(np.where(p > 0, p, 1.0))).sum()))


def stable_rank(matrix: Any) -> float:
    """||A||_F^2/||A||_2^2: how many directions carry the energy.

    Args:
        matrix: [rows, columns], not all zero.
    """
    s = singular_values(matrix)
    return float((s * s).sum() / s[0] ** 2) if s[0] else 0.0


def score_matrix_spectrum(w_q: Any, w_k: Any) -> Array:
    """Singular values of W_Q W_K^T, the bilinear form of the scores; at most d_k are not 0.

    Computed from two QR factors, so the d_model x d_model product is never formed.

    Args:
        w_q: W_Q, [d_model, d_k].
        w_k: W_K, [d_model, d_k].
    """
    a, b = floats("w_q", w_q), floats("w_k", w_k)
    if a.ndim != 2 or not a.size:
        raise ArgumentError("w_q", "[d_model, d_k], not empty", a.shape)
    if b.ndim != 2 or a.shape[1] != b.shape[1]:
        raise ArgumentError("w_k", "[d_model, d_k] as w_q", f"{b.shape}, {a.shape}")
    finite("w_q", a)
    finite("w_k", b)
    return singular_values(np.linalg.qr(a)[1] @ np.linalg.qr(b)[1].T)


def marchenko_pastur_edges(rows: int, cols: int, variance: float) -> tuple[float, float]:
    """sqrt(variance) |sqrt rows -+ sqrt cols|: ends of the singular values of a random matrix.

    Args:
        rows: number of rows.
        cols: number of columns.
        variance: variance of an entry.
    """
    _check_dims(rows=rows, cols=cols)
    at_least("variance", number("variance", variance), 0)
    root = math.sqrt(variance)
    a, b = math.sqrt(rows), math.sqrt(cols)
    return root * abs(a - b), root * (a + b)
