"""What steering does to one attention call: a new scale, normalised scores, another mask."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn

from attentropy.core.errors import ArgumentError, UnsupportedError
from attentropy.core.masks import Extent, Mask, MaskLike, all_of
from attentropy.core.resolve import Options
from attentropy.core.scales import (
    HoldEntropy,
    InfoScale,
    LogLengthFrom,
    PowerLength,
    ScaleRule,
    StepLog,
)
from attentropy.core.scores import Cosine, Dot, Score, unit
from attentropy.core.visibility import Visibility
from attentropy.core.weights import Weights
from attentropy.models.record.model_masks import FAR

# c(n) / sqrt(d) with c = 1 at the trained length: they multiply whatever scale the model has
RELATIVE = (LogLengthFrom, HoldEntropy, InfoScale, PowerLength, StepLog)


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
        counts = visible if visible.is_floating_point() else visible.float()
        x = counts.clamp(min=1).log()
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


@dataclass(eq=False)
class Touch:
    """The outcome of a change for one module.

    Attributes:
        name: of the module.
        wanted: the change should have an effect here.
        applied: it reached a call.
        left: how the module attended without the change, or why it could not be made.
        softmaxes: by the form of their logits, which softmaxes of the module are taken for
            attention. What a watch finds out later does not change it.
    """

    name: str
    wanted: bool = True
    applied: bool = False
    left: str = ""
    softmaxes: dict[Any, bool] = field(default_factory=dict)


@dataclass(frozen=True, eq=False, kw_only=True)
class Change:
    """The request to steer(); fields are its arguments, and `touch` is the outcome."""

    scale: ScaleRule | float | Tensor | None = None
    temperature: Tensor | None = None
    qk_norm: Norm = False
    softcap: float | None = None
    weights: Weights | None = None
    mask: Mask | None = None
    touch: Touch = field(default_factory=lambda: Touch(""))

    def of(self, name: str) -> "Change":
        """The same change for the module with this name, with its own `touch`."""
        asked = (self.scale, self.temperature, self.softcap, self.weights, self.mask)
        some = self.qk_norm not in (False, None) or any(value is not None for value in asked)
        return replace(self, touch=Touch(name, wanted=some))

    def __call__(
        self, module: nn.Module, q: Tensor, k: Tensor, options: Options
    ) -> tuple[Tensor, Tensor, Options]:
        """Queries, keys and options of the changed call."""
        q, k, scale = _normed(q, k, self.qk_norm)
        if scale is not None:
            _check_score(options.score)
            options = options._replace(score=None, scale=scale)
        if isinstance(options.mask, Visibility) and options.mask.added is not None:
            options = options._replace(mask=self._with_bias(options.mask, q.shape[-1]))
        if self.mask is not None:
            options = options._replace(mask=_met(options.mask, self.mask))
        if self.softcap is not None:
            options = options._replace(softcap=self.softcap)
        if self.weights is not None:
            options = options._replace(weights=self.weights)
        if self.scale is not None or self.temperature is not None:
            score = Dot() if options.score is None else options.score
            options = options._replace(scale=_Rescaled(module, self, score, options.scale))
        return q, k, options

    def _with_bias(self, seen: Visibility, head_dim: int) -> Visibility:
        """What a model adds to its scores gets the factor of the scores."""
        factor = self.factor(seen.visible, head_dim)
        if factor is None or seen.added is None:
            return seen
        added = seen.added * factor[..., None].to(seen.added.dtype)
        return seen._replace(added=added.masked_fill(seen.added.isneginf(), -torch.inf))

    def rescaled(self, module: nn.Module, now: Any, head_dim: int, visible: Tensor) -> Any:
        """The scale that replaces the scale of a call.

        Args:
            module: makes the call.
            now: the scale of the call, a number or broadcastable to [B,H,Q].
            head_dim: width of queries and keys.
            visible: number of visible keys of each row.
        """
        new, rule = now, self.scale
        if isinstance(rule, Planned):
            new = new * rule(head_dim, visible)
        elif isinstance(rule, RELATIVE):
            new = new * rule(head_dim, visible) * head_dim**0.5
        elif callable(rule) and not isinstance(rule, Tensor):
            new = rule(head_dim, visible) / _prescaled(module, now)
        elif rule is not None:
            new = rule / _prescaled(module, now)
        if isinstance(new, Tensor):
            new = new.view(1, -1, 1) if new.dim() == 1 else new
        if self.temperature is not None:
            new = new / self.temperature.to(visible).view(1, -1, 1)
        return new

    @property
    def not_by_softmax(self) -> str | None:
        """Why the change cannot be made where only logits are known; None if it can."""
        if self.qk_norm not in (False, None):
            return "qk_norm finds no queries and keys"
        if self.weights is not None:
            return "other weights find no values"
        if isinstance(self.scale, InfoScale):
            return "InfoScale depends on the width of queries, which the logits do not tell"
        if self.scale is not None and not isinstance(self.scale, (Planned, *RELATIVE)):
            return "a scale in place of the model's own finds no scores"
        return None

    def logits(self, s: Tensor, hidden: Tensor) -> Tensor:
        """The logits that replace those of a model's softmax, [B,H,Q,K].

        Factors and the softcap act on the whole logit, with whatever bias the model has added.

        Args:
            s: logits of the model.
            hidden: keys that they hide.
        """
        if self.mask is not None:
            batch, heads, queries, keys = s.shape
            extent = Extent(batch, heads, queries, keys, s.device)
            hidden = hidden | ~Visibility.of_mask(self.mask, extent).dense()
        x = s if self.softcap is None else self.softcap * (s / self.softcap).tanh()
        factor = self.factor((~hidden).sum(-1))
        x = x if factor is None else (x * factor[..., None]).to(s.dtype)
        # a row whose keys are all as low is uniform, and stays so
        low = s.detach().amax(-1, keepdim=True) < -FAR
        return torch.where(hidden, -torch.inf, torch.where(low, s, x))

    def factor(self, visible: Tensor, head_dim: int = 1) -> Tensor | None:
        """The factor on the whole logit, broadcastable to [B,H,Q]; None if there is none.

        Args:
            visible: number of visible keys of each row.
            head_dim: width of queries and keys; matters for InfoScale alone.
        """
        factor: Tensor | None = None
        if isinstance(self.scale, Planned):
            factor = self.scale(head_dim, visible.float())
        elif isinstance(self.scale, RELATIVE):
            factor = self.scale(head_dim, visible.float()) * head_dim**0.5
        if self.temperature is not None:
            cooled = 1 / self.temperature.to(visible.device).view(1, -1, 1)
            factor = cooled if factor is None else factor * cooled
        return factor

    def reach(self) -> None:
        """Record that the change was made in a call."""
        self.touch.applied = True

    def leave(self, how: str) -> None:
        """Record that the module attends in a way that cannot be changed.

        Args:
            how: the way, in words.
        """
        self.touch.left = how


def _met(given: MaskLike | Visibility | None, mask: Mask) -> Mask | Visibility | None:
    """The mask of a call where another one hides more keys."""
    return given.meet(mask) if isinstance(given, Visibility) else all_of((given, mask))


def check_norm(qk_norm: Norm) -> None:
    """Raise unless it is one of the forms that steer() takes."""
    if isinstance(qk_norm, bool | None) or qk_norm in ("rms", "layer"):
        return
    if callable(qk_norm) and not isinstance(qk_norm, type):
        return
    if not isinstance(qk_norm, Real) or not 0 < float(qk_norm) < math.inf:
        rule = "True, 'rms', 'layer', a positive number or a function (q, k) -> (q, k)"
        raise ArgumentError("qk_norm", rule, repr(qk_norm))


@dataclass(frozen=True, eq=False)
class _Rescaled:
    """The rule of a call of attend() whose own scale is changed."""

    module: nn.Module
    change: Change
    score: Score
    scale: ScaleRule | float | Tensor | None

    def __call__(self, head_dim: int, visible: Tensor) -> Tensor:
        """The scale, broadcastable to [B,H,Q]."""
        now: Any = self.score.default_scale(head_dim) if self.scale is None else self.scale
        if callable(now) and not isinstance(now, Tensor):
            now = now(head_dim, visible)
        if isinstance(now, Tensor):
            now = now.view(1, -1, 1) if now.dim() == 1 else now
        new = self.change.rescaled(self.module, now, head_dim, visible)
        return torch.as_tensor(new, dtype=visible.dtype, device=visible.device)


def _normed(q: Tensor, k: Tensor, qk_norm: Any) -> tuple[Tensor, Tensor, float | None]:
    """Queries and keys of root mean square 1; of length 1 and a given scale; or as a function says.

    With mean square 1 logits stay within sqrt(d) for the scale 1 / sqrt(d).
    """
    if qk_norm is False or qk_norm is None:
        return q, k, None
    if callable(qk_norm):
        q, k = qk_norm(q, k)
        return q, k, None
    if qk_norm == "layer":
        q, k = (x - x.mean(-1, keepdim=True) for x in (q, k))
    q, k = (unit(x, eps=1e-6) for x in (q, k))
    if qk_norm is not True and not isinstance(qk_norm, str):
        return q, k, float(qk_norm)
    root = q.shape[-1] ** 0.5
    return q * root, k * root, 1 / root


def _check_score(score: Any) -> None:
    """Raise unless the score of normed queries and keys is their dot product."""
    if score is not None and not isinstance(score, Dot | Cosine):
        raise UnsupportedError(
            f"steer(qk_norm=...) takes dot products and cosines, not the score {score}; pass a "
            "function (q, k) -> (q, k)"
        )


def _prescaled(module: nn.Module, now: Any) -> float:
    """The factor that a model (OPT, Whisper, BART) puts on its queries before attention."""
    factor = getattr(module, "scaling", 1.0)
    plain = isinstance(now, float) and now == 1.0
    return factor if plain and isinstance(factor, float) and factor > 0 else 1.0
