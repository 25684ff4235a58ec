"""From one attention call to numbers per head: sums over its rows, so that calls add up exactly.

A row counts if its query is no padding and sees two keys or more. `ROWS` are summed over every
such row. `SAMPLED` need all weights of a row and are taken on a few evenly spaced rows per call,
so that memory stays O(n); both begin with the number of rows summed.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from attentropy.observe.asked import Asked
from attentropy.types import Stats

ROWS = (
    "rows",
    "entropy",
    "perplexity",
    "normalized_entropy",
    "log_visible",
    "visible",
    "lse",
    "top_probability",
    "collision",
    "sparsity",
    "noise_robustness",
    "output_norm",
    "sink_mass",
    "previous_share",
)
SAMPLED = (
    "rows",
    "previous_of_sampled",
    "distance",
    "received_concentration",
    "spread",
    "logit_range",
    "positional",
)
ALIGNED_ROWS = 4  # below this a profile of distances tells nothing


@dataclass(frozen=True, eq=False)
class Sums:
    """Sums of one call per head.

    `rows` [len(ROWS),H] and `sampled` [len(SAMPLED),H]; `top` [H], the largest logit; `overlap`
    [H,H], the inner products of the heads' weights.
    """

    rows: Tensor
    top: Tensor
    sampled: Tensor
    overlap: Tensor


@dataclass(frozen=True, eq=False)
class Kept:
    """Rows of one call as they were, for profiles along the sequence.

    `entropy`, `max_logit` [B,H,Q]; `visible`, `counted` broadcastable to it; `distance` [B,H,R]
    for the queries `sampled` [R]; `position` [Q] is the place of each query among the keys.
    """

    entropy: Tensor
    max_logit: Tensor
    visible: Tensor
    counted: Tensor
    position: Tensor
    sampled: Tensor
    distance: Tensor


def rows_to_sample(queries: int, most: int | None) -> list[int]:
    """Evenly spaced queries, the last one always among them.

    >>> rows_to_sample(10, 4)
    [1, 4, 6, 9]
    """
    count = queries if most is None else min(queries, most)
    return [(i + 1) * queries // count - 1 for i in range(count)]


@torch.no_grad()
def measure(
    asked: Asked,
    out: Tensor | None,
    stats: Stats,
    *,
    counted: Tensor | None,
    sample: int | None,
    every_row: bool = True,
) -> tuple[Sums, Kept]:
    """The sums of a call, and its rows. `counted` marks queries that are no padding.

    `out` is None where only the weights are known. The share of the previous key takes a pass
    over queries and keys; without `every_row` it is known of the sampled rows only.
    """
    visible = stats.visible[:1, :1] if _constant(stats.visible) else stats.visible
    chosen = visible >= 2 if counted is None else (visible >= 2) & counted
    rows = _rows(asked, out, stats, visible=visible, every_row=every_row)
    rows = rows.masked_fill_(~chosen, 0.0)
    top = _or_nan(stats.max_logit, stats).masked_fill(~chosen, -torch.inf)
    index = torch.tensor(rows_to_sample(asked.sizes[2], sample), device=rows.device)
    sampled, overlap, distance = _sampled(asked, stats, index, chosen=chosen)
    sums = Sums(
        rows.sum(3).double().sum(1),
        top.amax((0, 2)).double(),
        sampled.sum(3).double().sum(1),
        overlap.double(),
    )
    entropy = _or_nan(stats.entropy, stats)
    position = asked.sight.own
    if position is None:
        position = torch.arange(asked.sizes[2], device=rows.device)
    return sums, Kept(entropy, top, visible, chosen, position, index, distance)


def _constant(visible: Tensor) -> bool:
    """Is [B,H,Q] an expansion of one row, as an interval without padding gives it?"""
    return visible.stride()[:2] == (0, 0)


def _or_nan(value: Tensor | None, stats: Stats) -> Tensor:
    return torch.full_like(stats.collision, torch.nan) if value is None else value.detach()


def _rows(
    asked: Asked, out: Tensor | None, stats: Stats, *, visible: Tensor, every_row: bool
) -> Tensor:
    """ROWS of every row, [len(ROWS),B,H,Q]."""
    entropy, lse = _or_nan(stats.entropy, stats), _or_nan(stats.lse, stats)
    norm = None if out is None else torch.linalg.vector_norm(out, dim=-1, dtype=entropy.dtype)
    collision = stats.collision.detach()
    count = visible.to(entropy.dtype)
    log_visible = count.clamp(min=1).log()
    root = collision.rsqrt()
    robust = 1 / math.sqrt(math.e - 1)  # what unit Gaussian noise on the scores makes of sum p^2
    values = (
        torch.ones_like(entropy),
        entropy,
        entropy.exp(),
        entropy / log_visible,
        log_visible.expand_as(entropy),
        count.expand_as(entropy),
        lse,
        (_or_nan(stats.max_logit, stats) - lse).exp(),
        collision,
        root * count.rsqrt(),
        root * robust,
        _or_nan(norm, stats),
        _sink(asked, stats, lse),
        _previous(asked, lse, every_row=every_row),
    )
    return torch.stack(values)


def _sink(asked: Asked, stats: Stats, lse: Tensor) -> Tensor:
    """Weight of the first key, and of a learned sink."""
    first = asked.sight.first()
    if first is None:
        first = torch.zeros(1, 1, 1, dtype=torch.int64, device=lse.device)
    mass = _share(asked.logits_of(first), lse)
    return mass if stats.sink_mass is None else mass + stats.sink_mass.detach()


def _previous(asked: Asked, lse: Tensor, *, every_row: bool) -> Tensor:
    """Weight of the key just before the query; NaN in cross-attention."""
    if asked.sight.own is None or not every_row:
        return torch.full_like(lse, torch.nan)
    return _share(asked.logits_before(), lse)


def _share(s: Tensor, lse: Tensor) -> Tensor:
    return (s - lse).exp().masked_fill(s.isneginf(), 0.0)


def _sampled(
    asked: Asked, stats: Stats, index: Tensor, *, chosen: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """SAMPLED of the queries `index`, [len(SAMPLED),B,H,R]; overlap [H,H]; distance [B,H,R]."""
    s = asked.logits_at(index)
    heads = s.shape[1]
    if stats.lse is None:
        nothing = s.new_full((len(SAMPLED), *s.shape[:3]), torch.nan)
        return nothing, s.new_full((heads, heads), torch.nan), nothing[0]
    kept = (chosen[..., index] if chosen.shape[-1] > 1 else chosen).expand(s.shape[:3])
    p = (s - stats.lse.detach()[:, :, index, None]).exp_()
    if torch.compiler.is_compiling() or not bool(kept.all()):
        p = p.masked_fill(~kept[..., None], 0.0)
    return from_weights(s, p, kept, own=_places(asked, index))


def _places(asked: Asked, index: Tensor) -> Tensor | None:
    return None if asked.sight.own is None else asked.sight.own[index]


def from_weights(
    s: Tensor, p: Tensor, kept: Tensor, *, own: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """SAMPLED, overlap and distance of rows whose logits s and weights p [B,H,R,K] are there."""
    ones = kept.to(p.dtype)
    distance = _distance(p, own)
    deviation, reach = _spread(s)
    values = torch.stack(
        (
            ones,
            _before(p, own),
            distance,
            _received(p, ones),
            deviation,
            reach,
            _positional(p, ones, own),
        )
    ).masked_fill(~kept, 0.0)
    flat = p.transpose(0, 1).flatten(1)
    return values, flat @ flat.mT, distance


def _before(p: Tensor, own: Tensor | None) -> Tensor:
    """Weight of the key just before each of these rows."""
    if own is None:
        return p.new_full(p.shape[:3], torch.nan)
    place = (own - 1).clamp(0, p.shape[3] - 1).view(1, 1, -1, 1).expand(*p.shape[:3], 1)
    return p.gather(-1, place)[..., 0].masked_fill(own == 0, 0.0)


def _distance(p: Tensor, own: Tensor | None) -> Tensor:
    """sum_j p_ij |i - j|."""
    if own is None:
        return p.new_full(p.shape[:3], torch.nan)
    key = torch.arange(p.shape[3], device=p.device)
    return torch.einsum("bhrk,rk->bhr", p, (own[:, None] - key).abs().to(p.dtype))


def _received(p: Tensor, ones: Tensor) -> Tensor:
    """sum_j r_j^2, with r_j the share of the attention of a head's rows that key j receives."""
    share = p.sum(2) / ones.sum(2, keepdim=True).clamp(min=1)
    return share.square().sum(-1, keepdim=True).expand_as(ones)


def _spread(s: Tensor) -> tuple[Tensor, Tensor]:
    """Standard deviation and range of the visible logits of each row.

    Taken about the largest logit, which hidden keys are put at.
    """
    top = s.amax(-1, keepdim=True)
    hidden = s.isneginf()
    z = (s - top).masked_fill_(hidden, 0.0)
    count = s.shape[-1] - hidden.sum(-1)
    mean = z.sum(-1) / count
    square = torch.linalg.vector_norm(z, dim=-1).square() / count
    return (square - mean.square()).clamp(min=0).sqrt(), -z.amin(-1)


def _positional(p: Tensor, ones: Tensor, own: Tensor | None) -> Tensor:
    """Cosine between a row's weights by distance and those of the head's mean row.

    1 where the weights depend on the distance alone.
    """
    rows, keys = p.shape[2:]
    if own is None or rows < ALIGNED_ROWS:
        return torch.full_like(ones, torch.nan)
    place = (own[:, None] - torch.arange(keys, device=p.device)) % keys
    by_distance = p.gather(-1, place.expand_as(p))
    mean = by_distance.sum((0, 2), keepdim=True)
    dots = torch.einsum("bhrk,hk->bhr", by_distance, mean[0, :, 0])
    norms = torch.linalg.vector_norm(p, dim=-1) * torch.linalg.vector_norm(mean, dim=-1)
    return dots / norms.clamp(min=torch.finfo(p.dtype).tiny)
