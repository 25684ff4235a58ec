"""Rows of attention as means under p, and where their largest logits are."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from attentropy.core.states import RowState, rest_of, spread_of
from attentropy.kernels.tiled.tiles import RowBlock, Tiler

_CHUNK = 128


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


def largest(s: Tensor) -> tuple[Tensor, Tensor]:
    """Maximum and its lowest index: amax is vectorised in torch, max with indices is not.

    So maxima of chunks come first, and only the chunk of the largest one is searched.
    """
    size = s.shape[-1]
    if size < 4 * _CHUNK:
        m, at = s.max(-1)
        return m, at
    whole = size // _CHUNK * _CHUNK
    maxima = s[..., :whole].unflatten(-1, (-1, _CHUNK)).amax(-1)
    if whole < size:
        maxima = torch.cat([maxima, s[..., whole:].amax(-1, keepdim=True)], -1)
    m, chunk = maxima.max(-1)
    start = chunk.mul_(_CHUNK)
    if whole < size:
        start.clamp_(max=size - _CHUNK)
    rows = torch.arange(0, s.numel(), size, device=s.device).view_as(start)
    chunks = s.view(-1).unfold(0, _CHUNK, 1).index_select(0, (rows + start).view(-1))
    return m, chunks.argmax(-1).view_as(start).add_(start)
