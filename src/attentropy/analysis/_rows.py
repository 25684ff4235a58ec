"""Attention weights a few queries at a time: what analysis needs, without the n x n table."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple, Unpack

import torch
from torch import Tensor

from attentropy.analysis._weighing import Weigh, kind_of, weighing
from attentropy.core.call import Call
from attentropy.core.errors import ArgumentError
from attentropy.core.resolve import AttendOptions, Options, check_tensors, resolve
from attentropy.core.weights import Softmax, Weights
from attentropy.kernels.tiled.tiles import RowBlock, Tiler, logits

ELEMENTS = 1 << 20


class WeightRows(NamedTuple):
    """Some queries of one batch entry, all heads, in float64.

    Attributes:
        entry: index in the batch.
        queries: which queries.
        visible: [H,R], number of visible keys.
        logits: [H,R,K], -inf where a key is hidden.
        weights: [H,R,K], rows of zeros where nothing is visible.
        values: [H,K,Dv].
        kind: how logits become weights.
        weigh: from other logits [H,R,K] of these rows to weights.
    """

    entry: int
    queries: slice
    visible: Tensor
    logits: Tensor
    weights: Tensor
    values: Tensor
    kind: Weights
    weigh: Callable[[Tensor], Tensor]

    @property
    def is_softmax(self) -> bool:
        """Whether the weights are softmax, for which derivatives are known in closed form."""
        return isinstance(self.kind, Softmax)

    @property
    def out(self) -> Tensor:
        """sum_j p_j v_j, [H,R,Dv]."""
        return self.weights @ self.values

    @property
    def seen(self) -> Tensor:
        """Which rows see anything, [H,R]."""
        return self.visible > 0


def rows(
    q: Tensor,
    k: Tensor,
    v: Tensor | None = None,
    *,
    share: int = 1,
    **options: Unpack[AttendOptions],
) -> Iterator[WeightRows]:
    """Blocks of rows of attention, with any weights that logits decide.

    Args:
        q: queries [B,H,Q,D].
        k: keys [B,Hk,K,D].
        v: values [B,Hk,K,Dv].
        share: number of tables of a block's size that the caller holds at once.
        options: those of attend().
    """
    call = resolved(q, k, v, **options)
    for name, size in zip(("batch", "heads", "queries"), call.q.shape, strict=False):
        if not size:
            raise ArgumentError(f"the size of q in {name}", ">= 1", 0)
    if not call.k.shape[2]:
        raise ArgumentError("the number of keys", ">= 1", 0)
    tiler, visible = Tiler(call), call.visible.expand(call.q.shape[:3])
    weigh = weighing(call)
    step = max(1, ELEMENTS // (share * tiler.query_heads * tiler.keys))
    for entry in range(tiler.batch):
        values = tiler.v[entry].repeat_interleave(tiler.group, 0)
        for start in range(0, tiler.queries, step):
            block = RowBlock(
                slice(entry, entry + 1),
                slice(0, tiler.heads),
                slice(start, min(start + step, tiler.queries)),
            )
            s = tiler.four(block, logits(tiler, block, slice(0, tiler.keys)))[0].clone()
            count = visible[entry, :, block.queries]
            yield WeightRows(
                entry, block.queries, count, s, weigh(s, count), values, call.weights,
                partial(_again, weigh, count),
            )  # fmt: skip


def _again(weigh: Weigh, visible: Tensor, logits: Tensor) -> Tensor:
    return weigh(logits, visible)


def resolved(
    q: Tensor, k: Tensor, v: Tensor | None = None, **options: Unpack[AttendOptions]
) -> Call:
    """The checked call in float64, without gradient."""
    known = Options._fields
    for name in options:
        if name not in known or name == "dropout":
            allowed = sorted(set(known) - {"dropout"})
            raise ArgumentError("option", f"one of {allowed}", repr(name))
    kind_of(options)
    check_tensors(q, k, k if v is None else v)
    v = k[..., :1] if v is None else v
    wide = [x.detach().double() for x in (q, k, v)]
    with torch.no_grad():
        return resolve(wide[0], wide[1], wide[2], Options(**options))


def entropy(p: Tensor) -> Tensor:
    """-sum p log p over the last dimension."""
    return torch.special.entr(p).sum(-1)


def collect(parts: list[Tensor], q: Tensor) -> Tensor:
    """Blocks [H,R,...] in order, as [B,H,Q,...]."""
    batch, _, queries = q.shape[:3]
    rows_first = torch.cat([p.transpose(0, 1) for p in parts])
    return rows_first.unflatten(0, (batch, queries)).transpose(1, 2)


def per_head(x_BHQ: Tensor) -> Tensor:
    """The mean over batch and queries, [H]."""
    return x_BHQ.mean((0, 2))
