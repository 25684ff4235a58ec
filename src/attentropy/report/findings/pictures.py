"""Small pictures of attention: a healthy head next to an affected one, as SVG.

The weights are softmax of made-up scores of ten tokens under a causal mask, so that each picture
shows what its finding is about and nothing else.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

TOKENS = 10
CELL = 12
INK = "#3b6fd4"
FAINT = "#8884"

Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


@dataclass(frozen=True)
class Drawing:
    """A drawing and the words under it.

    Attributes:
        caption: what is seen.
        svg: the drawing, for pages light and dark.
    """

    caption: str
    svg: str


def weights(scores: Array) -> Array:
    """Softmax of scores [n, n] over the keys up to each query's own.

    Args:
        scores: any numbers; those after a query's own key do not count.
    """
    hidden = np.triu(np.ones_like(scores), 1) > 0
    shifted = np.where(hidden, -np.inf, scores - scores.max(-1, keepdims=True))
    found = np.exp(shifted)
    return found / found.sum(-1, keepdims=True)


def healthy() -> Array:
    """Scores of a head that weighs what it sees: some keys matter, by what they say."""
    return np.random.default_rng(3).normal(0.0, 1.6, (TOKENS, TOKENS))


def heat_map(table: Array) -> str:
    """Weights [queries, keys] as shaded squares, queries from top to bottom.

    Args:
        table: weights from 0 to 1; NaN is drawn as a cross.
    """
    parts = []
    for (i, j), weight in np.ndenumerate(table):
        if j > i:
            continue
        place = f'x="{j * CELL}" y="{i * CELL}" width="{CELL - 1}" height="{CELL - 1}"'
        if np.isnan(weight):
            x, y, w = j * CELL + 3, i * CELL + 3, CELL - 7
            parts.append(f'<path d="M{x} {y}l{w} {w}m0 -{w}l-{w} {w}" stroke="#d04437"/>')
        else:
            parts.append(f'<rect {place} fill="{FAINT}"/>')
            parts.append(f'<rect {place} fill="{INK}" fill-opacity="{weight:.3f}"/>')
    return _svg(TOKENS * CELL, TOKENS * CELL, parts)


def bars(values: Sequence[float], *, marked: int) -> str:
    """Values as columns, one of them marked.

    Args:
        values: from 0 to 1.
        marked: the index of the column that is meant.
    """
    side = TOKENS * CELL
    width = side / len(values)
    parts = [
        f'<rect x="{i * width + 2:.1f}" y="{side - max(1.5, value * side):.1f}" '
        f'width="{width - 4:.1f}" height="{max(1.5, value * side):.1f}" '
        f'fill="{"#d04437" if i == marked else INK}"/>'
        for i, value in enumerate(values)
    ]
    return _svg(side, side, parts)


def curve(values: Sequence[float], *, limit: float | None = None) -> str:
    """Values as a line from left to right, and a limit as a dashed one.

    Args:
        values: from 0 to 1.
        limit: from 0 to 1, or None for no limit.
    """
    side = TOKENS * CELL
    step = side / (len(values) - 1)
    points = " ".join(f"{i * step:.1f},{(1 - value) * side:.1f}" for i, value in enumerate(values))
    parts = [
        f'<path d="M0.5 0V{side - 0.5}H{side}" fill="none" stroke="{FAINT}"/>',
        f'<polyline points="{points}" fill="none" stroke="{INK}" stroke-width="2"/>',
    ]
    if limit is not None:
        y = (1 - limit) * side
        parts.append(
            f'<path d="M0 {y:.1f}H{side}" stroke="#d04437" stroke-dasharray="4 3" fill="none"/>'
        )
    return _svg(side, side, parts)


def _svg(width: float, height: float, parts: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
        f'width="{width:g}" height="{height:g}" role="img">{"".join(parts)}</svg>'
    )


def rounded_to_bfloat16(scores: Array) -> Array:
    """Scores as bfloat16 keeps them: eight significant bits.

    Args:
        scores: finite numbers.
    """
    fraction, exponent = np.frexp(scores)
    return np.ldexp(np.round(fraction * 256) / 256, exponent)


def shifted(offset: float) -> Array:
    """Healthy scores on top of large ones, whose differences stay the same."""
    return healthy() * 0.2 + offset


def at_distance(profile: Callable[[Array], Array]) -> Array:
    """Scores that depend on the distance of query and key alone.

    Args:
        profile: scores by distance.
    """
    place = np.arange(float(TOKENS))
    return profile(place[:, None] - place)


def on_one_key() -> Array:
    """Scores of a head that gives each query one key, whatever the others say."""
    keys = np.array([0, 1, 1, 2, 4, 2, 5, 4, 8, 5])
    scores = np.zeros((TOKENS, TOKENS))
    scores[np.arange(TOKENS), keys] = 12.0
    return scores


def on_the_first() -> Array:
    """Scores of a head that rests on the first key."""
    scores = healthy() * 0.5
    scores[:, 0] = 4.0
    return scores
