"""What attention gives back.

Shape letters, defined here for the whole library: B batch, H query heads, Hk key heads (Hk divides
H), Q queries, K keys, D width of queries and keys, Dv width of values. A suffix such as `_BHQ` on a
name gives its shape.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree


@dataclass(frozen=True, eq=False)
class Stats:
    """Statistics of every row of attention, each [B,H,Q]; natural logarithms.

    With s the final logits of a row and p its weights:

    Attributes:
        entropy: H = -sum p log p; None where the weights are no probabilities.
        lse: log sum e^s; None where the weights are no probabilities.
        max_logit: max s over the visible keys; None, like argmax, for weights without logits.
        argmax: the visible key that has it (the lowest of ties), -1 for a row that sees nothing.
        collision: sum p^2, the chance that two draws meet.
        visible: how many keys the row may see.
        sink_mass: probability of the sink, where there is one; the sink counts in entropy, lse
            and collision, not in max_logit, argmax and visible.
        mass: sum |p| where the weights are no probabilities, else None.

    Gradients flow through entropy, lse, collision and sink_mass.
    """

    entropy: Tensor | None
    lse: Tensor | None
    max_logit: Tensor | None
    argmax: Tensor | None
    collision: Tensor
    visible: Tensor
    sink_mass: Tensor | None = None
    mass: Tensor | None = None

    @property
    def perplexity(self) -> Tensor | None:
        """e^H, the number of keys that the row attends to in effect."""
        return None if self.entropy is None else self.entropy.exp()

    @property
    def normalized_entropy(self) -> Tensor | None:
        """H / log visible; NaN where visible < 2: such a row had no choice to make."""
        if self.entropy is None:
            return None
        few = self.visible < 2
        share = self.entropy / self._log_visible(self.entropy).masked_fill(few, 1.0)
        return share.masked_fill(few, torch.nan)

    @property
    def sparsity(self) -> Tensor:
        """S = E|p| / sqrt(E p^2) over the visible keys: 1 is flat, 1/sqrt(visible) one-hot.

        NaN where every weight is zero, or no key is visible.
        """
        # NaN is filled in last: passed through a division, it would be the gradient of the row
        none = (self.collision == 0) | (self.visible == 0)
        square = self.visible.to(self.collision.dtype) * self.collision
        root = square.masked_fill(none, 1.0).sqrt()
        mass = torch.ones_like(root) if self.mass is None else self.mass
        return (mass / root).masked_fill(none, torch.nan)

    @property
    def deficit(self) -> Tensor | None:
        """Log visible - H, the divergence of the row from uniform; 0 for a row without keys."""
        return None if self.entropy is None else self._log_visible(self.entropy) - self.entropy

    @property
    def top_probability(self) -> Tensor | None:
        """The weight of the strongest key; 0 for a row that sees nothing."""
        if self.lse is None or self.max_logit is None:
            return None
        blind = self.visible == 0
        return (self.max_logit - self.lse.masked_fill(blind, torch.inf)).exp()

    @property
    def gradient_flow(self) -> Tensor | None:
        """1 - sum p^2, the trace of the softmax Jacobian; 0 where attention is saturated."""
        if self.entropy is None:
            return None
        return (1 - self.collision).masked_fill(self.visible == 0, 0.0)

    @property
    def mean_logit(self) -> Tensor | None:
        """The mean of s under p, which is lse - H; -inf for a row that sees nothing."""
        if self.lse is None or self.entropy is None:
            return None
        return self.lse - self.entropy

    def per_head(self) -> "HeadStats":
        """The mean over batch and queries, [H] each, over rows that had a choice.

        Rows with fewer than two visible keys are left out; a head without other rows gives NaN.
        `max_logit` is the largest rather than the mean.
        """
        chosen = self.visible >= 2
        count = chosen.sum((0, 2))
        means = {
            name: _mean(getattr(self, name), chosen=chosen)
            for name in _AVERAGED
            if getattr(self, name) is not None
        }
        # a row whose weights are all zero is neither sparse nor flat
        means["sparsity"] = _mean(self.sparsity, chosen=chosen & (self.collision != 0))
        top = None
        if self.max_logit is not None:
            top = _largest(self.max_logit, chosen=chosen).masked_fill(count == 0, torch.nan)
        return HeadStats(max_logit=top, rows=count, **means)

    def _log_visible(self, like: Tensor) -> Tensor:
        return self.visible.clamp(min=1).to(like.dtype).log()


_AVERAGED = (
    "entropy",
    "perplexity",
    "normalized_entropy",
    "deficit",
    "lse",
    "mean_logit",
    "top_probability",
    "gradient_flow",
    "collision",
    "visible",
    "sink_mass",
)


def _mean(value_BHQ: Tensor, *, chosen: Tensor) -> Tensor:
    count = chosen.sum((0, 2))
    kept = value_BHQ.double().masked_fill(~chosen, 0.0)
    return kept.sum((0, 2)) / count.double().masked_fill(count == 0, torch.nan)


def _largest(value_BHQ: Tensor, *, chosen: Tensor) -> Tensor:
    rows = value_BHQ.double().masked_fill(~chosen, -torch.inf).transpose(0, 1).flatten(1)
    return rows.amax(1) if rows.shape[1] else rows.new_zeros(len(rows))


@dataclass(frozen=True, eq=False, kw_only=True)
class HeadStats:
    """Statistics per head, each [H] float64; also a mapping from name to tensor.

    Attributes are those of `Stats` and its derived properties; those that do not apply to the
    weights are None and are no keys of the mapping. `rows` is the number of rows averaged.
    """

    max_logit: Tensor | None
    rows: Tensor
    collision: Tensor
    sparsity: Tensor
    visible: Tensor
    entropy: Tensor | None = None
    perplexity: Tensor | None = None
    normalized_entropy: Tensor | None = None
    deficit: Tensor | None = None
    lse: Tensor | None = None
    mean_logit: Tensor | None = None
    top_probability: Tensor | None = None
    gradient_flow: Tensor | None = None
    sink_mass: Tensor | None = None

    def keys(self) -> list[str]:
        """Names of the statistics that apply."""
        return [f.name for f in fields(self) if getattr(self, f.name) is not None]

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.keys():
            raise KeyError(name)
        value: Tensor = getattr(self, name)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __len__(self) -> int:
        return len(self.keys())


class Attended(NamedTuple):
    """The output [B,H,Q,Dv] of attention and the statistics of its rows."""

    out: Tensor
    stats: Stats


# so that torch.export and torch.func find the tensors in what a layer returns
for _kind in (Stats, HeadStats):
    _pytree.register_dataclass(_kind, serialized_type_name=f"attentropy.{_kind.__name__}")
_pytree._register_namedtuple(Attended, serialized_type_name="attentropy.Attended")
