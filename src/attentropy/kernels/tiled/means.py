"""Rows of attention as means under p, and where their largest logits are."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from attentropy.core.states import RowState, rest_of, spread_of
from attentropy.kernels.tiled.ties import floor, lowest_of_equal
from attentropy.kernels.tiled.tiles import RowBlock, Tiler

_CHUNK, _SHORT = 128, 32  # logits that are searched at a time, in long rows and in others


class Means(NamedTuple):
    """A row state in terms of p = softmax(s), which saves passes.

    m, rest = l - 1, the mean of s - m, the variance of s, the norm of p, the mean of v, the key
    of m.
    """

    m: Tensor
    rest: Tensor
    t: Tensor
    spread: Tensor
    norm: Tensor
    o: Tensor
    argmax: Tensor

    def state(self) -> RowState:
        """The row state, for merging."""
        l, argmax = 1 + self.rest, self.argmax
        u, c = l * torch.addcmul(self.spread, self.t, self.t), (l * self.norm).square_()
        visible = torch.zeros_like(argmax)  # the call counts them
        o, spread = l[..., None] * self.o, l * self.spread
        return RowState(self.m, l, l * self.t, u, c, o, visible, argmax, self.rest, spread)

    @classmethod
    def of(cls, state: RowState) -> "Means":
        """The means of a row state."""
        m, l, t, _, c, o, _, argmax, *_ = state
        top = l.reciprocal().masked_fill_(l == 0, 0.0)
        spread, out = spread_of(state) * top, o * top[..., None]
        return cls(m, rest_of(state), t * top, spread, c.sqrt() * top, out, argmax)


def rest(weights: Tensor, argmax: Tensor, total: Tensor | float) -> Tensor:
    """l - 1: the sum of each row of weights without the largest, over the largest.

    Args:
        weights: [...,K], not below 0.
        argmax: the key of the largest, [...].
        total: the sum of the row.
    """
    top = weights.gather(-1, argmax[..., None])[..., 0]
    others = total - top
    one_hot = others < top / 8  # nearly: the difference has lost digits
    if one_hot.any():
        rows = weights[one_hot].scatter_(-1, argmax[one_hot][..., None], 0.0)
        others[one_hot] = rows.sum(-1)
    return others.div_(top)


def collect(tiler: Tiler, compute: Callable[[RowBlock], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """Seven tensors of the whole call, as Means has them, from those of its blocks of rows."""
    sizes, width = tiler.q.shape[:3], tiler.v.shape[-1]
    out = tiler.call.v.new_empty(*sizes, width)
    argmax = torch.empty(sizes, dtype=torch.int64, device=out.device)
    found = (*tiler.q.new_empty(5, *sizes), out, argmax)
    for block in tiler.blocks():
        for target, value in zip(found, compute(block), strict=True):
            tiler.put(block, target, value)
    return found


def without_blind(rows: Means) -> Means:
    """Rows that see nothing of a tile are the identity, not 0/0."""
    unseen = rows.m.isneginf()
    t, spread, norm = (x.masked_fill(unseen, 0.0) for x in rows[2:5])
    rest, o = rows.rest.masked_fill(unseen, -1.0), rows.o.masked_fill(unseen[..., None], 0.0)
    return Means(rows.m, rest, t, spread, norm, o, rows.argmax.masked_fill(unseen, -1))


def moments(
    tiler: Tiler, z: Tensor, weights: Tensor, total: Tensor | float
) -> tuple[Tensor, Tensor]:
    """Mean and variance of z under weights that add up to `total`.

    The variance is taken about the mean, so that nothing cancels. z and weights are overwritten.
    """
    room = tiler.buffer("inner", tuple(z.shape))
    mean = torch.mul(z, weights, out=room).sum(-1).div_(total)
    spread = weights.mul_(z.sub_(mean[..., None])).mul_(z).sum(-1)
    return mean, spread.div_(total)


def top_of(tiler: Tiler, block: RowBlock, keys: slice, s: Tensor) -> tuple[Tensor, Tensor]:
    """The largest logits of a tile, and the lowest places that have them; of equal keys the first.

    Args:
        tiler: the call.
        block: the rows of the tile.
        keys: its keys.
        s: its logits.
    """
    m, argmax = largest(s)
    if not tiler.by_keys:
        return m, argmax
    near = _first_above(s, floor(m))
    if bool((near >= argmax).all()):
        return m, argmax
    return m, lowest_of_equal(s, m, argmax, near, tiler.keyed(block, keys, tiler.k))


def largest(s: Tensor) -> tuple[Tensor, Tensor]:
    """Maximum and its lowest index: amax is vectorised in torch, max with indices is not.

    So maxima of chunks come first, and only the chunk of the largest one is searched.
    """
    if s.shape[-1] < 4 * _CHUNK:
        m, at = s.max(-1)
        return m, at
    m, chunk = _maxima(s, _CHUNK).max(-1)
    found, start = _in_chunk(s, chunk, _CHUNK)
    return m, found.argmax(-1).view_as(start).add_(start)


def _first_above(s: Tensor, least: Tensor) -> Tensor:
    """The lowest index of a logit that is not below `least`, 0 if there is none; found as above."""
    size = _CHUNK if s.shape[-1] >= 4 * _CHUNK else _SHORT
    if s.shape[-1] < 4 * size:
        return (s >= least[..., None]).view(torch.uint8).argmax(-1)
    chunk = (_maxima(s, size) >= least[..., None]).view(torch.uint8).argmax(-1)
    found, start = _in_chunk(s, chunk, size)
    high = found >= least.reshape(-1, 1)
    return high.view(torch.uint8).argmax(-1).view_as(start).add_(start)


def _maxima(s: Tensor, chunk: int) -> Tensor:
    """The largest logit of every chunk of a row; the last may be short."""
    whole = s.shape[-1] // chunk * chunk
    maxima = s[..., :whole].unflatten(-1, (-1, chunk)).amax(-1)
    if whole == s.shape[-1]:
        return maxima
    return torch.cat([maxima, s[..., whole:].amax(-1, keepdim=True)], -1)


def _in_chunk(s: Tensor, number: Tensor, chunk: int) -> tuple[Tensor, Tensor]:
    """One chunk of each row, [rows, chunk], and where it starts; a short one is met by its end."""
    size = s.shape[-1]
    start = (number * chunk).clamp_(max=size - chunk)
    rows = torch.arange(0, s.numel(), size, device=s.device).view_as(start)
    return s.view(-1).unfold(0, chunk, 1).index_select(0, (rows + start).view(-1)), start
