"""Cutting an attention call into tiles: blocks of rows against ranges of keys.

Work is laid out as [N, R, T]: N pairs of batch entry and key head, R = group x rows query rows
that share these keys, T keys. A tile fits a buffer of eight megabytes: it stays in the
shared cache while several elementwise passes go over it, and there are few enough of them that
calling torch costs little.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from attentropy.core.call import Call
from attentropy.core.masks.extent import Where
from attentropy.core.visibility import ALL, Span
from attentropy.kernels import noise
from attentropy.kernels.tiled.logits import Terms, additive_scores, finish, hide
from attentropy.kernels.tiled.scratch import scratch
from attentropy.kernels.tiled.ties import by_keys

TILE_ELEMENTS = 1 << 21
MAX_KEYS = 8192
MIN_ROWS = 16
_LARGE = 1 << 19
_HAS_ONEDNN = torch.backends.mkldnn.is_available()
_ONEDNN = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if _HAS_ONEDNN else None


@dataclass(frozen=True)
class RowBlock:
    """Rows of work: batch entries, key heads (with all their query heads), queries."""

    batch: slice
    heads: slice
    queries: slice

    @property
    def count(self) -> tuple[int, int, int]:
        """Numbers of batch entries, key heads and queries."""
        b, h, q = (s.stop - s.start for s in (self.batch, self.heads, self.queries))
        return b, h, q


class Tiler:
    """The call in the working layout and precision, cut into blocks and key ranges.

    Products come in units of `unit` nats. If they are `exact`, they are summed in float64, and
    scaled afterwards: scores that cancel are then 0.
    """

    def __init__(self, call: Call, *, unit: float = 1.0, exact: bool = False) -> None:
        wide = torch.float64 if exact or call.q.dtype == torch.float64 else torch.float32
        self.call, self.dtype, self.unit, self.exact = call, wide, unit, exact
        self.batch, self.query_heads, self.queries, self.width = call.q.shape
        self.heads, self.keys = call.k.shape[1:3]
        self.group = self.query_heads // self.heads
        self.q, self.k, self.v = (x.detach().to(wide) for x in (call.q, call.k, call.v))
        self.k, self.v = self.k.contiguous(), self.v.contiguous()
        self.scale = call.scale.detach().to(wide).expand(call.q.shape[:3])
        # unscaled products of bounded calls do not overflow, and need no scaled copy of q
        self.factor = float(call.scale) / unit if unit != 1.0 and call.scale.numel() == 1 else None
        # bounds are read tile by tile: on the CPU, so that a GPU is waited for only once
        lo, hi = (None if x is None else x.cpu() for x in (call.seen.lo, call.seen.hi))
        self.terms = Terms.of(call)._replace(seen=call.seen._replace(lo=lo, hi=hi))
        self.hides, self.by_keys = call.seen.hides, by_keys(call)
        # 0 * NaN must not leak out of hidden keys: such values are mixed in with care
        self.clean = not self.hides or _finite(self.v)
        self._buffers: dict[tuple[str, tuple[int, ...]], Tensor] = {}

    @cached_property
    def tainted(self) -> bool:
        """Whether 0 * NaN could leak out of hidden pairs into gradients."""
        return self.hides and not all(map(_finite, (self.q, self.k, self.v, self.scale)))

    def expect(self, *grads: Tensor | None) -> None:
        """Say which gradients come in: 0 * NaN could leak out of theirs too."""
        given = [g for g in grads if g is not None]
        if self.hides and not all(map(_finite, given)):
            self.tainted = True

    def seen(self, block: RowBlock, keys: slice) -> Tensor:
        """Which keys of a tile are visible, bool [N, R, T]."""
        b, h, r = block.count
        seen = self.q.new_ones(b * h, self.group * r, keys.stop - keys.start)
        self.hide(block, keys, self.four(block, seen), 0.0)
        return seen > 0

    @cached_property
    def scaled(self) -> Tensor:
        """The queries times their scales."""
        return self.q * (self.scale / self.unit)[..., None]

    def blocks(self) -> Iterator[RowBlock]:
        """Blocks of rows that share a buffer."""
        per_row = self.group * min(self.keys, MAX_KEYS)
        # rows that share a block share the keys it skips: with intervals, heads share it instead
        seen = self.terms.seen
        skips = seen.lo is not None or seen.hi is not None
        lanes = min(self.heads, torch.get_num_threads()) if skips else 1
        rows = max(MIN_ROWS, min(self.queries, TILE_ELEMENTS // (per_row * lanes)))
        heads = max(1, TILE_ELEMENTS // (per_row * min(rows, self.queries)))
        entries = max(1, heads // self.heads)
        heads = min(heads, self.heads)
        for b in range(0, self.batch, entries):
            for h in range(0, self.heads, heads):
                for q in range(0, self.queries, rows):
                    yield RowBlock(
                        slice(b, min(b + entries, self.batch)),
                        slice(h, min(h + heads, self.heads)),
                        slice(q, min(q + rows, self.queries)),
                    )

    def key_ranges(self, block: RowBlock) -> list[slice]:
        """Ranges of keys that some row of the block may see, at most MAX_KEYS each."""
        rows, seen = self.span(block, ALL), self.terms.seen
        first = 0 if seen.lo is None else max(0, int(rows.of(seen.lo).min()))
        last = self.keys if seen.hi is None else min(self.keys, int(rows.of(seen.hi).max()))
        starts = range(first, last, MAX_KEYS)
        return [slice(start, min(start + MAX_KEYS, last)) for start in starts]

    def buffer(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Scratch memory of a shape, reused between tiles and between calls."""
        held = self._buffers.get((name, shape))
        if held is None:
            held = scratch(name, math.prod(shape), like=self.q).view(shape)
            self._buffers[name, shape] = held
        return held

    def rows(self, block: RowBlock, x_BHQ: Tensor) -> Tensor:
        """Part of a [B,H,Q] tensor in the working layout [N, R, 1]."""
        b, h, r = block.count
        return self.part(block, x_BHQ).reshape(b * h, self.group * r, 1)

    def wide_rows(self, block: RowBlock, x_BHQD: Tensor) -> Tensor:
        """Part of a [B,H,Q,D] tensor in the working layout [N, R, D]."""
        b, h, r = block.count
        part = self.part(block, x_BHQD)
        return part.reshape(b * h, self.group * r, x_BHQD.shape[-1])

    def put(self, block: RowBlock, target_BHQ: Tensor, value_NR: Tensor) -> None:
        """Write rows of the working layout back into a [B,H,Q] or [B,H,Q,D] tensor."""
        part = self.part(block, target_BHQ)
        part.copy_(value_NR.reshape(part.shape))

    def keyed(self, block: RowBlock, keys: slice, x_BHKD: Tensor) -> Tensor:
        """Part of a [B,Hk,K,D] tensor as [N, T, D]; a view, for contiguous x."""
        part = x_BHKD[block.batch, block.heads, keys]
        return part.reshape(-1, part.shape[2], part.shape[3])

    def add_keyed(
        self, block: RowBlock, keys: slice, target_BHKD: Tensor, value_NTD: Tensor
    ) -> None:
        """Add to part of a [B,Hk,K,D] tensor."""
        part = target_BHKD[block.batch, block.heads, keys]
        part.add_(value_NTD.reshape(part.shape))

    def heads_of(self, block: RowBlock) -> slice:
        """The query heads of a block."""
        return slice(block.heads.start * self.group, block.heads.stop * self.group)

    def span(self, block: RowBlock, keys: slice) -> Span:
        """Which part of the call a tile is."""
        return Span(block.batch, self.heads_of(block), block.queries, keys)

    def where(self, block: RowBlock, keys: slice) -> Where:
        """Indices of a tile, broadcasting to [b, h * group, r, T]."""
        return self.terms.seen.select(self.span(block, keys)).where

    def hide(self, block: RowBlock, keys: slice, x4: Tensor, value: float) -> None:
        """Write `value` where a key of a tile is hidden."""
        if self.hides:
            hide(x4, self.terms.seen.select(self.span(block, keys)), value=value)

    def four(self, block: RowBlock, x_NRT: Tensor) -> Tensor:
        """A tile as [b, h * group, r, T], a view."""
        b, h, r = block.count
        return x_NRT.view(b, h * self.group, r, -1)

    def part(self, block: RowBlock, x: Tensor) -> Tensor:
        """The rows of a block out of a [B,H,Q,...] tensor, a view."""
        return x[block.batch, self.heads_of(block), block.queries]


def _finite(x: Tensor) -> bool:
    """Whether all of x is; a twentieth of the time of x.isfinite().all()."""
    return not x.numel() or all(math.isfinite(end) for end in x.aminmax())


def logits(tiler: Tiler, block: RowBlock, keys: slice) -> Tensor:
    """Final logits [N, R, T] of a tile, in a buffer; -inf where a key is hidden."""
    s = product(tiler, block, keys)
    finish(tiler.four(block, s), tiler.terms.select(tiler.span(block, keys)))
    return s


def product(tiler: Tiler, block: RowBlock, keys: slice) -> Tensor:
    """Scale * score of a tile."""
    k = tiler.keyed(block, keys, tiler.k)
    if tiler.factor is not None:
        return pairs("logits", tiler.wide_rows(block, tiler.q), k, tiler, factor=tiler.factor)
    if tiler.exact and tiler.call.additive is None:
        s = pairs("logits", tiler.wide_rows(block, tiler.q), k, tiler)
        return s.mul_(tiler.rows(block, tiler.scale))
    if tiler.call.additive is None:
        return pairs("logits", tiler.wide_rows(block, tiler.scaled), k, tiler)
    q = tiler.wide_rows(block, tiler.q)
    s = tiler.buffer("logits", (len(k), q.shape[1], k.shape[1]))
    additive_scores(q, k, vector_rows(tiler, block), s)
    return s.mul_(tiler.rows(block, tiler.scale))


def pairs(name: str, a_NRD: Tensor, b_NTD: Tensor, tiler: Tiler, *, factor: float = 1.0) -> Tensor:
    """factor * a . b of every pair of rows, [N, R, T], in the buffer `name`."""
    out = tiler.buffer(name, (len(a_NRD), a_NRD.shape[1], b_NTD.shape[1]))
    if a_NRD.shape[1] == 1:
        # a product of one row may sum equal keys in different orders; that of two does not
        both = torch.bmm(a_NRD.expand(-1, 2, -1), b_NTD.mT)
        return torch.mul(both[:, :1], factor, out=out)
    if out.numel() < _LARGE * len(out):
        return torch.baddbmm(out, a_NRD, b_NTD.mT, beta=0, alpha=factor, out=out)
    for a, b, o in zip(a_NRD, b_NTD, out, strict=True):
        torch.addmm(o, a, b.mT, beta=0, alpha=factor, out=o)  # a tenth faster one by one
    return out


def vector_rows(tiler: Tiler, block: RowBlock) -> Tensor:
    """The vector of the additive score for every row, [N, R, hidden]."""
    vector = tiler.call.additive
    assert vector is not None
    whole = vector.detach().to(tiler.dtype)[None, :, None, :]
    return tiler.wide_rows(block, whole.expand(tiler.q.shape))


def lost_rows(tiler: Tiler, m: Tensor) -> Tensor:
    """Rows that see keys, all of whose logits are -inf."""
    return m.isneginf() & (tiler.call.visible > 0)


def first_seen(tiler: Tiler) -> Tensor:
    """The lowest visible key of every row, [B,H,Q]; -1 where there is none."""
    first = torch.full(tiler.q.shape[:3], -1, device=tiler.q.device)
    for block in tiler.blocks():
        part = tiler.part(block, first)
        for keys in reversed(tiler.key_ranges(block)):
            seen = torch.ones(*part.shape, keys.stop - keys.start, device=first.device)
            tiler.hide(block, keys, seen, 0.0)
            top, at = seen.max(-1)
            part.copy_(torch.where(top > 0, at + keys.start, part))
    return first


def mix(weights: Tensor, tiler: Tiler, block: RowBlock, keys: slice) -> Tensor:
    """sum_j weights_j v_j [N, R, Dv] over the visible keys of a tile."""
    v = tiler.keyed(block, keys, tiler.v)
    if tiler.clean:
        return weighted(weights, v)
    return seen_product(weights, v, tiler.seen(block, keys))


def seen_product(a_NRT: Tensor, b_NTD: Tensor, seen_NRT: Tensor) -> Tensor:
    """a b over seen pairs: a NaN or infinity of b reaches the rows of a that see it only."""
    out = torch.bmm(a_NRT, b_NTD.nan_to_num(0.0, 0.0, 0.0))
    for j in (~b_NTD.isfinite()).any(2).any(0).nonzero().flatten().tolist():
        bad = b_NTD[:, j : j + 1].where(~b_NTD[:, j : j + 1].isfinite(), 0.0)
        out += (a_NRT[..., j : j + 1] * bad).where(seen_NRT[..., j : j + 1], 0.0)
    return out


def keyed_product(
    a_NRT: Tensor, b_NRD: Tensor, tiler: Tiler, block: RowBlock, keys: slice
) -> Tensor:
    """a^T b, [N, T, D], over the visible pairs of a tile."""
    if not tiler.tainted:
        return torch.bmm(a_NRT.mT, b_NRD)
    return seen_product(a_NRT.mT, b_NRD, tiler.seen(block, keys).mT)


def weighted(p_NRT: Tensor, v_NTD: Tensor) -> Tensor:
    """p v, for large products on a CPU by oneDNN: a fifth faster there than torch.bmm.

    torch has no other name for that product in float32.
    """
    plain = p_NRT.dtype == torch.float32 and p_NRT.device.type == "cpu"
    if _ONEDNN is None or not plain or p_NRT.numel() < _LARGE * max(1, len(p_NRT)):
        return torch.bmm(p_NRT, v_NTD)
    both = zip(p_NRT, v_NTD, strict=True)
    return torch.stack([_ONEDNN(p, v.mT, None, "none", [], "") for p, v in both])


def dropped(tiler: Tiler, block: RowBlock, keys: slice) -> Tensor | None:
    """Dropout factors of a tile, [N, R, T], or None."""
    call = tiler.call
    if not call.dropout:
        return None
    where = tiler.where(block, keys)
    b, h, r = block.count
    factors = noise.kept(tiler.terms.seed, where, rate=call.dropout, dtype=tiler.dtype)
    return factors.reshape(b * h, tiler.group * r, -1)
