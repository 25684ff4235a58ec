"""Small numerical helpers that many measures share."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from attentropy.theory._arrays import Array
from attentropy.theory.entropy import entropy, softmax


def generator(seed: int = 0) -> np.random.Generator:
    """A fixed stream of random numbers.

    Args:
        seed: start of the stream.
    """
    return np.random.default_rng(seed)


def normals(first: int, *sizes: int | tuple[int, ...]) -> Iterator[Array]:
    """Standard normal arrays, each from a stream of its own: seeds `first`, `first` + 1, ...

    Args:
        first: seed of the first array.
        sizes: shape of each array.
    """
    return (generator(first + i).normal(size=size) for i, size in enumerate(sizes))


def products(rng: np.random.Generator, rows: int, width: int) -> Array:
    """Dot products of `rows` pairs of independent standard normal vectors.

    Args:
        rng: source of random numbers.
        rows: number of pairs.
        width: of the vectors.
    """
    left, right = rng.normal(size=(rows, width)), rng.normal(size=(rows, width))
    return np.asarray((left * right).sum(-1))


def close(a: Any, b: Any, tol: float = 1e-9) -> bool:
    """True if two arrays are equal up to `tol`, relative and absolute.

    Args:
        a: one array.
        b: the other.
        tol: relative and absolute tolerance.
    """
    return bool(np.allclose(a, b, rtol=tol, atol=tol))


def gap(a: Any, b: Any) -> float:
    """max |a - b|.

    Args:
        a: one array.
        b: the other.
    """
    return float(np.max(np.abs(np.asarray(a, float) - np.asarray(b, float))))


def derivative(function: Callable[[Array], Any], at: Any, step: float = 1e-5) -> Array:
    """Central differences of a function of a vector, one row per coordinate.

    Args:
        function: of a vector.
        at: where.
        step: half the distance of the two evaluations.
    """
    x = np.asarray(at, float)
    rows = []
    for i in range(x.size):
        delta = np.zeros_like(x)
        delta[i] = step
        rows.append(
            (np.asarray(function(x + delta)) - np.asarray(function(x - delta))) / (2 * step)
        )
    return np.array(rows)


def jacobian(p: Any) -> Array:
    """diag(p) - p p^T.

    Args:
        p: probabilities, [n].
    """
    return np.diag(p) - np.outer(p, p)


def mean_entropy(spread: float, n: int, rows: int = 200, seed: int = 0) -> float:
    """Mean entropy of `rows` rows of n Gaussian scores.

    Args:
        spread: standard deviation of the scores.
        n: number of keys.
        rows: number of rows.
        seed: of the random numbers.
    """
    return float(np.mean(entropy(spread * generator(seed).normal(size=(rows, n)))))


def sinusoid(positions: Array, width: int) -> Array:
    """Sinusoidal encodings, sines first: angles position / 10000^(2k/width).

    Args:
        positions: [n].
        width: of an encoding; even.
    """
    angle = positions[:, None] * 10000.0 ** (-np.arange(0, width, 2) / width)
    return np.concatenate([np.sin(angle), np.cos(angle)], 1)


def deviation(samples: Any, wanted: float) -> float:
    """Mean minus `wanted` in standard errors.

    Args:
        samples: draws.
        wanted: what their mean should be.
    """
    values = np.asarray(samples, float)
    return float((values.mean() - wanted) / (values.std() / np.sqrt(values.size)))


def row_entropy(p: Any) -> Array:
    """-sum p log p along the last axis.

    Args:
        p: probabilities along the last axis.
    """
    w = np.asarray(p, float)
    return -(w * np.log(np.where(w > 0, w, 1.0))).sum(-1)


def attend(scores: Any, values: Any) -> Array:
    """softmax(scores) @ values.

    Args:
        scores: keys on the last axis.
        values: one row per key.
    """
    return np.asarray(softmax(scores) @ np.asarray(values, float))


def expectation(density: Callable[[Array], Array], f: Callable[[Array], Array]) -> float:
    """E f under a density on the line, by a fine trapezoid sum.

    Args:
        density: on the line.
        f: function to average.
    """
    x = np.linspace(-60, 60, 240001)
    return float(np.sum(density(x) * f(x)) * (x[1] - x[0]))
