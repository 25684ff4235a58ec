"""Which factor on a head's scale gives a target entropy? Newton's method for all heads of a layer.

With x the logarithm of the factor, H falls at the rate that a curve measured beside it (V, where
nothing but the product makes the logits). Steps are taken in log((log n - H) / H): it is close to a
line in x while scores are spread, where log n - H grows with the square of the factor, and goes on
where one key takes all. From two points on, the cubic through values and slopes is followed.
"""

import math

import torch
from torch import Tensor

from attentropy.models.record.curves import Curve

LEAST, MOST = 0.5, 16.0
"""Factors that are looked for."""
SETTLED = 0.02  # a step in x after which the next one would be some 1e-4
POINTS = 8  # of curves that have steps; others settle with three
_TINY = 1e-9


def next_factors(curve: Curve, goal: Tensor) -> Tensor | None:
    """The factors to measure next, [H]; None when every head is solved.

    Args:
        curve: what was measured of a layer.
        goal: the target entropy of each head, [H].
    """
    x = curve.factors.log()
    root = _root(curve, goal)
    settled = ((root[:, None] - x).abs() < SETTLED).any(1) | root.isnan()
    if bool(settled.all()) or x.shape[1] >= POINTS:
        return None
    return root.nan_to_num(nan=0.0).exp()


def solved(curve: Curve, goal: Tensor) -> list[float | None]:
    """The factor of each head; None where none from LEAST to MOST gives the goal.

    Args:
        curve: what was measured of a layer.
        goal: the target entropy of each head, [H].
    """
    low, high = math.log(LEAST), math.log(MOST)
    return [math.exp(x) if low < x < high else None for x in _root(curve, goal).tolist()]


def _root(curve: Curve, goal: Tensor) -> Tensor:
    """Where the curve meets the goal, as logarithms of factors, [H]; beyond the range its ends."""
    x = curve.factors.log()
    y, slope = _heights(curve, goal)
    order = y.abs().argsort(1)[:, :2]
    near, far = order[:, :1], order[:, -1:]
    root = (x - y / slope).gather(1, near)
    if x.shape[1] > 1:
        cubic = _cubic(*(z.gather(1, at) for at in (near, far) for z in (x, y, slope)))
        root = torch.where(cubic.isfinite(), cubic, root)
    low = torch.where(y <= 0, x, math.log(LEAST)).amax(1)
    high = torch.where(y >= 0, x, math.log(MOST)).amin(1)
    return torch.minimum(torch.maximum(root[:, 0], low), high)


def _heights(curve: Curve, goal: Tensor) -> tuple[Tensor, Tensor]:
    """log((log n - H) / H) above that of the goal, and its slope in x, [H,F]."""
    entropy, most = curve.mean(), curve.most
    left, kept = (most - entropy).clamp(min=_TINY), entropy.clamp(min=_TINY)
    aim = (most - goal).clamp(min=_TINY).log() - goal.clamp(min=_TINY).log()
    height = left.log() - kept.log() - aim[:, None]
    return height, curve.fall / curve.rows * (1 / left + 1 / kept)


def _cubic(x: Tensor, y: Tensor, slope: Tensor, x2: Tensor, y2: Tensor, slope2: Tensor) -> Tensor:
    """x at height 0 of the cubic x(y) through two points and their slopes; NaN far from both."""
    gap = y2 - y
    t = -y / gap
    value = (1 + 2 * t) * (1 - t) ** 2 * x + t * t * (3 - 2 * t) * x2
    turn = t * (1 - t) ** 2 * gap / slope + t * t * (t - 1) * gap / slope2
    return (value + turn).where((t > -0.5) & (t < 1.5), math.nan)
