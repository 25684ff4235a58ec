"""Statistics that need all weights of a row, taken on a few rows per call."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attentropy.core import statistics
from attentropy.core.results import Stats
from attentropy.core.visibility import Span, Visibility
from attentropy.kernels.tiled.logits import row_logits
from attentropy.models.record.model_call import ModelCall
from attentropy.models.record.model_masks import ModelMask, hidden_keys

SAMPLED = ("rows", "previous_of_sampled", *statistics.SAMPLED)
ALIGNED_ROWS = 4  # below this a profile of distances tells nothing
SMALL = 1 << 16  # elements; tables of positions up to this size are kept for the next layer


def rows_to_sample(
    queries: int, most: int | None, *, start: int = 0, device: torch.device | None = None
) -> Tensor:
    """Evenly spaced queries from `start` on, the last one always among them.

    Args:
        queries: number of queries of the call.
        most: how many to take of all queries; None for all.
        start: the first query that may be taken.
        device: of the result.

    >>> rows_to_sample(10, 4).tolist()
    [1, 4, 6, 9]
    >>> rows_to_sample(10, 4, start=2).tolist()
    [4, 6, 9]
    """
    count = queries if most is None else min(queries, most)
    before = ((start + 1) * count - 1) // queries if start else 0
    return torch.arange(before + 1, count + 1, device=device) * queries // count - 1


@dataclass(frozen=True, eq=False)
class SampledRows:
    """Of the queries `index` [R]: sums of SAMPLED [N,H], overlap [H,H] and distance [B,H,R].

    The overlap holds the inner products of the heads' weights. `first` [H] is the sum of the
    weights of the first key, where the sample is all rows that count, else None.
    """

    index: Tensor
    sums: Tensor
    overlap: Tensor
    distance: Tensor
    first: Tensor | None = None


@dataclass(frozen=True, eq=False)
class SampleGrid:
    """Positions of the sampled queries `index` [R], and of all keys about each.

    `seen` says which keys they see. `before` [R,1] is the key just before each query and
    `has_before` [R] whether there is one; `away` [R,K] is how far each key is from the query's own;
    `turned` [R,K] the key at each distance behind it, those ahead coming last. These are None in
    cross-attention.
    """

    index: Tensor
    seen: Visibility
    before: Tensor | None = None
    has_before: Tensor | None = None
    away: Tensor | None = None
    turned: Tensor | None = None


def sampled(
    asked: ModelCall, stats: Stats, *, start: int, mask: Tensor | None, most: int | None
) -> SampledRows:
    """SAMPLED of some rows of a call.

    Args:
        asked: the call.
        stats: statistics of all its rows.
        start: the first row that counts.
        mask: rows that count, broadcastable to [B,H,Q]; None if all from `start` on do.
        most: how many rows to take; None for all.
    """
    grid = _grid(asked, start, most, like=stats.collision)
    if stats.lse is None or stats.max_logit is None:
        return _nothing(stats, grid.index)
    s = row_logits(asked.call, grid.index, seen=grid.seen)
    if asked.call.bias is not None:  # which may hide keys by a low number
        s = s.masked_fill_(hidden_keys(s), -torch.inf)
    top, lse, visible = (
        x.detach().index_select(2, grid.index).unsqueeze(3)
        for x in (stats.max_logit, stats.lse, stats.visible)
    )
    z = s.sub_(top)
    p = (z + (top - lse)).exp_()
    kept = None
    if mask is not None:
        kept = (mask[..., grid.index] if mask.shape[-1] > 1 else mask).expand(s.shape[:3])
        p = p.masked_fill_(~kept[..., None], 0.0)
    few = _summed(z, p, visible, grid, kept=kept)
    # in a graph, what depends on the length would be a graph for every length
    if torch.compiler.is_compiling() or len(grid.index) < stats.lse.shape[2] - start:
        return few
    return replace(few, first=_first(p, asked.mask).sum((0, 2), dtype=torch.float64))


def _grid(asked: ModelCall, start: int, most: int | None, *, like: Tensor) -> SampleGrid:
    """The grid of the sampled queries; small ones are made once for layers that see alike."""
    if torch.compiler.is_compiling():
        return _new_grid(asked, start, most, like=like)
    notes, name = asked.mask.notes, (like.dtype, start, most)
    grid: SampleGrid | None = notes.get(name)
    if grid is None:
        grid = _new_grid(asked, start, most, like=like)
        if len(grid.index) * asked.mask.seen.extent.keys <= SMALL:
            notes[name] = grid
    return grid


def _new_grid(asked: ModelCall, start: int, most: int | None, *, like: Tensor) -> SampleGrid:
    mask, device, dtype = asked.mask, like.device, like.dtype
    _, _, queries, keys, _ = mask.seen.extent
    index = rows_to_sample(queries, most, start=start, device=device)
    seen = mask.seen._replace(added=None).select(Span(queries=index))
    if seen.hides:
        seen = seen._replace(table=seen.sees(), lo=None, hi=None, predicate=None)
    if mask.positions is None:
        return SampleGrid(index, seen)
    own = mask.positions[index]
    behind = own[:, None] - torch.arange(keys, device=device)
    before = (own[:, None] - 1).clamp(0, keys - 1)
    has_before = ((own > 0) & (own <= keys)).to(dtype)
    return SampleGrid(index, seen, before, has_before, behind.abs().to(dtype), behind % keys)


def _nothing(stats: Stats, index: Tensor) -> SampledRows:
    """Of weights that are not probabilities none of this is known."""
    batch, heads, _ = stats.collision.shape
    nan = stats.collision.new_full((heads, heads), torch.nan)
    sums = nan.new_full((len(SAMPLED), heads), torch.nan, dtype=torch.float64)
    return SampledRows(
        index, sums, nan.double(), nan.new_full((batch, heads, len(index)), torch.nan)
    )


def _summed(
    z: Tensor, p: Tensor, visible: Tensor, grid: SampleGrid, *, kept: Tensor | None
) -> SampledRows:
    """Sums over rows with weights p and logits z below the largest, both [B,H,R,K]."""
    ones = p.new_ones(p.shape[:3]) if kept is None else kept.to(p.dtype)
    distance = _distance(p, grid)
    deviation, reach = _spread(z, visible.squeeze(3))
    found = {
        "rows": ones,
        "previous_of_sampled": _before(p, grid),
        "distance": distance,
        "received_concentration": _received(p, kept),
        "spread": deviation,
        "logit_range": reach,
        "positional": _positional(p, grid),
    }
    values = torch.stack([found[name] for name in SAMPLED])
    if kept is not None:
        values = values.masked_fill_(~kept, 0.0)
    flat = p.transpose(0, 1).flatten(1)
    return SampledRows(grid.index, values.sum((1, 3)).double(), (flat @ flat.mT).double(), distance)


def _first(p: Tensor, mask: ModelMask) -> Tensor:
    """Weight of the first key that any query sees."""
    if mask.first is None:
        return p[..., 0]
    key = mask.first.clamp(max=p.shape[3] - 1)[..., None]
    return p.gather(-1, key.expand(*p.shape[:3], 1))[..., 0]


def _before(p: Tensor, grid: SampleGrid) -> Tensor:
    """Weight of the key just before each of these rows."""
    if grid.before is None or grid.has_before is None:
        return p.new_full(p.shape[:3], torch.nan)
    return p.gather(-1, grid.before.expand(*p.shape[:3], 1))[..., 0] * grid.has_before


def _distance(p: Tensor, grid: SampleGrid) -> Tensor:
    """sum_j p_ij |i - j|."""
    if grid.away is None:
        return p.new_full(p.shape[:3], torch.nan)
    return (p * grid.away).sum(-1)


def _received(p: Tensor, kept: Tensor | None) -> Tensor:
    """sum_j r_j^2, with r_j the share of the attention of a head's rows that key j receives."""
    total = torch.linalg.vector_norm(p.sum(2), dim=-1, keepdim=True)
    count = p.shape[2] if kept is None else kept.sum(2, keepdim=True).clamp(min=1)
    return (total / count).square_().expand(p.shape[:3])


def _spread(z: Tensor, visible: Tensor) -> tuple[Tensor, Tensor]:
    """Standard deviation and range of each row's visible logits, from those below the largest.

    Overwrites z: hidden keys, at -inf, are put to 0, where they add nothing.
    """
    z = z.nan_to_num_(nan=torch.nan, posinf=torch.inf, neginf=0.0)
    mean = z.sum(-1) / visible
    square = torch.linalg.vector_norm(z, dim=-1).square() / visible
    return (square - mean.square()).clamp(min=0).sqrt(), -z.amin(-1)


def _positional(p: Tensor, grid: SampleGrid) -> Tensor:
    """Cosine between a row's weights by distance and those of the head's mean row.

    1 where the weights depend on the distance alone.
    """
    if grid.turned is None or p.shape[2] < ALIGNED_ROWS:
        return p.new_full(p.shape[:3], torch.nan)
    by_distance = p.gather(-1, grid.turned.expand_as(p))
    mean = by_distance.sum((0, 2), keepdim=True)
    dots = by_distance.mul_(mean).sum(-1)
    norms = torch.linalg.vector_norm(p, dim=-1) * torch.linalg.vector_norm(mean, dim=-1)
    return dots / norms.clamp_(min=torch.finfo(p.dtype).tiny)
