"""What steering does to one attention call: a new scale, normalised scores, another mask."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn

from attentropy.errors import ArgumentError
from attentropy.masks import Mask
from attentropy.observe.asked import Asked
from attentropy.scales import HoldEntropy, LogLengthFrom, PowerLength, ScaleRule
from attentropy.scores import unit
from attentropy.weights import Weights

# c(n) / sqrt(d) with c = 1 at the trained length: they multiply whatever scale the model has
RELATIVE = (LogLengthFrom, HoldEntropy, PowerLength)


Norm = bool | str | float | Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None


@dataclass(frozen=True, eq=False)
class Planned:
    """Factors of the model's own scale, one curve per head: linear in log n between lengths.

    `factors` is [head][length]; before the first length the factor is 1 (or that of the first
    length), after the last it stays.
    """

    lengths: tuple[int, ...]
    factors: tuple[tuple[float, ...], ...]

    def __call__(self, head_dim: int, visible: Tensor) -> Tensor:
        """Factors that broadcast to [B,H,Q]."""
        x = visible.clamp(min=1).float().log()
        knots = torch.tensor(self.lengths, dtype=x.dtype, device=x.device).log()
        table = torch.tensor(self.factors, dtype=x.dtype, device=x.device)  # [H,L]
        if len(self.lengths) == 1:
            return table[:, 0].view(1, -1, 1).expand(x.shape[0], -1, x.shape[2])
        right = torch.searchsorted(knots, x.contiguous()).clamp(1, len(self.lengths) - 1)
        gap = knots[right] - knots[right - 1]
        share = ((x - knots[right - 1]) / gap).clamp(0, 1)
        heads = torch.arange(len(table), device=x.device).view(1, -1, 1)
        low, high = table[heads, right - 1], table[heads, right]
        return low + share * (high - low)


@dataclass(frozen=True, eq=False, kw_only=True)
class Change:
    """What steer() was asked for; fields are its arguments."""

    scale: ScaleRule | float | Tensor | None = None
    temperature: Tensor | None = None
    qk_norm: Norm = False
    softcap: float | None = None
    weights: Weights | None = None
    mask: Mask | None = None
    applied: list[bool] | None = None

    def __call__(self, module: nn.Module, asked: Asked) -> Asked:
        """The call as it is to be made."""
        if self.applied is not None:
            self.applied[0] = True
        asked = _normed(asked, self.qk_norm)
        if self.mask is not None:
            batch, heads, _, _ = asked.sizes
            sight = asked.sight.meet(self.mask, batch=batch, heads=heads, device=asked.q.device)
            asked = replace(asked, sight=sight)
        if self.softcap is not None:
            asked = replace(asked, softcap=self.softcap)
        if self.weights is not None:
            asked = replace(asked, weights=self.weights)
        return _scaled(module, asked, self.scale, self.temperature)


def check_norm(qk_norm: Norm) -> None:
    """Raise unless it is one of the forms that steer() takes."""
    if isinstance(qk_norm, bool | None) or qk_norm in ("rms", "layer"):
        return
    if callable(qk_norm) and not isinstance(qk_norm, type):
        return
    if not isinstance(qk_norm, Real) or not 0 < float(qk_norm) < math.inf:
        rule = "True, 'rms', 'layer', a positive number or a function (q, k) -> (q, k)"
        raise ArgumentError("qk_norm", rule, repr(qk_norm))


def _normed(asked: Asked, qk_norm: Any) -> Asked:
    """Queries and keys of root mean square 1; of length 1 and a given scale; or as a function says.

    With mean square 1 logits stay within sqrt(d) for the scale 1 / sqrt(d).
    """
    if qk_norm is False or qk_norm is None:
        return asked
    if callable(qk_norm):
        q, k = qk_norm(asked.q, asked.k)
        return replace(asked, q=q, k=k)
    q, k = asked.q, asked.k
    if qk_norm == "layer":
        q, k = (x - x.mean(-1, keepdim=True) for x in (q, k))
    q, k = (unit(x, eps=1e-6) for x in (q, k))
    if qk_norm is True or isinstance(qk_norm, str):
        root = asked.head_dim**0.5
        return replace(asked, q=q * root, k=k * root, scale=asked.head_dim**-0.5)
    return replace(asked, q=q, k=k, scale=float(qk_norm))


def _scaled(module: nn.Module, asked: Asked, scale: Any, temperature: Tensor | None) -> Asked:
    new: Any = asked.scale
    visible = asked.sight.visible(device=asked.q.device)
    if isinstance(scale, Planned):
        new = new * scale(asked.head_dim, visible)
    elif isinstance(scale, RELATIVE):
        new = new * scale(asked.head_dim, visible) * asked.head_dim**0.5
    elif callable(scale) and not isinstance(scale, Tensor):
        new = scale(asked.head_dim, visible) / _prescaled(module, asked)
    elif scale is not None:
        new = scale / _prescaled(module, asked)
    if isinstance(new, Tensor):
        new = new.view(1, -1, 1) if new.dim() == 1 else new
    if temperature is not None:
        new = new / temperature.to(asked.q.device).view(1, -1, 1)
    return replace(asked, scale=new)


def _prescaled(module: nn.Module, asked: Asked) -> float:
    """The factor that a model (OPT, Whisper, BART) puts on its queries before attention."""
    factor = getattr(module, "scaling", 1.0)
    plain = isinstance(asked.scale, float) and asked.scale == 1.0
    return factor if plain and isinstance(factor, float) and factor > 0 else 1.0
