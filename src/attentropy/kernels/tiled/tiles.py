"""Cutting an attention call into tiles, and the logits of one tile with their gradients.

Work is laid out as [N, R, T]: N pairs of batch entry and key head, R = group x rows query rows
that share these keys, T keys. A tile fits a buffer of eight megabytes: it stays in the
shared cache while several elementwise passes go over it, and there are few enough of them that
calling torch costs little.
"""

import math
import mmap
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from attentropy.core.call import Call
from attentropy.core.masks import Where
from attentropy.core.weights import Gumbel
from attentropy.kernels import noise

TILE_ELEMENTS = 1 << 21
MAX_KEYS = 8192
MIN_ROWS = 16
_OF_THREAD = threading.local()
_LARGE = 1 << 19
_PAGE = 1 << 21
_HAS_ONEDNN = torch.backends.mkldnn.is_available()
_ONEDNN = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if _HAS_ONEDNN else None


@dataclass(frozen=True)
class Block:
    """Rows of work: batch entries, key heads (with all their query heads), queries."""

    batch: slice
    heads: slice
    queries: slice

    @property
    def count(self) -> tuple[int, int, int]:
        """Sizes of the three."""
        b, h, q = (s.stop - s.start for s in (self.batch, self.heads, self.queries))
        return b, h, q


class Tiler:
    """The call in the working layout and precision, cut into blocks and key ranges.

    Products come in units of `unit` nats.
    """

    def __init__(self, call: Call, *, unit: float = 1.0) -> None:
        wide = torch.float64 if call.q.dtype == torch.float64 else torch.float32
        self.call, self.dtype, self.unit = call, wide, unit
        self.batch, self.query_heads, self.queries, self.width = call.q.shape
        self.heads, self.keys = call.k.shape[1:3]
        self.group = self.query_heads // self.heads
        self.q, self.k, self.v = (x.detach().to(wide) for x in (call.q, call.k, call.v))
        self.k, self.v = self.k.contiguous(), self.v.contiguous()
        self.scale = call.scale.detach().to(wide).expand(call.q.shape[:3])
        # unscaled products of bounded calls do not overflow, and need no scaled copy of q
        self.factor = float(call.scale) / unit if unit != 1.0 and call.scale.numel() == 1 else None
        self.lo, self.hi = (_on_cpu(x, call) for x in (call.lo, call.hi))
        self.hides = any(x is not None for x in (call.lo, call.hi, call.mask, call.predicate))
        self.hides = self.hides or call.bias is not None
        # 0 * NaN must not leak out of hidden keys: such values are mixed in with care
        self.clean = not self.hides or _finite(self.v)
        self._buffers: dict[tuple[str, tuple[int, ...]], Tensor] = {}
        self.seed = 0 if call.seed is None else int(call.seed)

    @cached_property
    def tainted(self) -> bool:
        """Whether 0 * NaN could leak out of hidden pairs into gradients."""
        return self.hides and not all(map(_finite, (self.q, self.k, self.v, self.scale)))

    def seen(self, block: Block, keys: slice) -> Tensor:
        """Which keys of a tile are visible, bool [N, R, T]."""
        b, h, r = block.count
        seen = self.q.new_ones(b * h, self.group * r, keys.stop - keys.start)
        hide(self.four(block, seen), self, block, keys, value=0.0)
        return seen > 0

    @cached_property
    def scaled(self) -> Tensor:
        """The queries times their scales."""
        return self.q * (self.scale / self.unit)[..., None]

    def blocks(self) -> Iterator[Block]:
        """Blocks of rows that share a buffer."""
        per_row = self.group * min(self.keys, MAX_KEYS)
        # rows that share a block share the keys it skips: with intervals, heads share it instead
        skips = self.lo is not None or self.hi is not None
        lanes = min(self.heads, torch.get_num_threads()) if skips else 1
        rows = max(MIN_ROWS, min(self.queries, TILE_ELEMENTS // (per_row * lanes)))
        heads = max(1, TILE_ELEMENTS // (per_row * min(rows, self.queries)))
        entries = max(1, heads // self.heads)
        heads = min(heads, self.heads)
        for b in range(0, self.batch, entries):
            for h in range(0, self.heads, heads):
                for q in range(0, self.queries, rows):
                    yield Block(
                        slice(b, min(b + entries, self.batch)),
                        slice(h, min(h + heads, self.heads)),
                        slice(q, min(q + rows, self.queries)),
                    )

    def key_ranges(self, block: Block) -> list[slice]:
        """Ranges of keys that some row of the block may see, at most MAX_KEYS each."""
        first = 0 if self.lo is None else max(0, int(self.part(block, self.lo).min()))
        last = self.keys
        if self.hi is not None:
            last = min(last, int(self.part(block, self.hi).max()))
        starts = range(first, last, MAX_KEYS)
        return [slice(start, min(start + MAX_KEYS, last)) for start in starts]

    def buffer(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Scratch memory of a shape, reused between tiles and between calls."""
        held = self._buffers.get((name, shape))
        if held is None:
            held = scratch(name, math.prod(shape), like=self.q).view(shape)
            self._buffers[name, shape] = held
        return held

    def rows(self, block: Block, x_BHQ: Tensor) -> Tensor:
        """Part of a [B,H,Q] tensor in the working layout [N, R, 1]."""
        b, h, r = block.count
        return self.part(block, x_BHQ).reshape(b * h, self.group * r, 1)

    def wide_rows(self, block: Block, x_BHQD: Tensor) -> Tensor:
        """Part of a [B,H,Q,D] tensor in the working layout [N, R, D]."""
        b, h, r = block.count
        part = self.part(block, x_BHQD)
        return part.reshape(b * h, self.group * r, x_BHQD.shape[-1])

    def put(self, block: Block, target_BHQ: Tensor, value_NR: Tensor) -> None:
        """Write rows of the working layout back into a [B,H,Q] or [B,H,Q,D] tensor."""
        part = self.part(block, target_BHQ)
        part.copy_(value_NR.reshape(part.shape))

    def keyed(self, block: Block, keys: slice, x_BHKD: Tensor) -> Tensor:
        """Part of a [B,Hk,K,D] tensor as [N, T, D]; a view, for contiguous x."""
        part = x_BHKD[block.batch, block.heads, keys]
        return part.reshape(-1, part.shape[2], part.shape[3])

    def add_keyed(self, block: Block, keys: slice, target_BHKD: Tensor, value_NTD: Tensor) -> None:
        """Add to part of a [B,Hk,K,D] tensor."""
        part = target_BHKD[block.batch, block.heads, keys]
        part.add_(value_NTD.reshape(part.shape))

    def heads_of(self, block: Block) -> slice:
        """The query heads of a block."""
        return slice(block.heads.start * self.group, block.heads.stop * self.group)

    def where(self, block: Block, keys: slice) -> Where:
        """Indices of a tile, broadcasting to [b, h * group, r, T]."""
        spans = (block.batch, self.heads_of(block), block.queries, keys)
        b, h, q, k = (
            torch.arange(s.start, s.stop, device=self.q.device).view(
                [-1 if i == j else 1 for j in range(4)]
            )
            for i, s in enumerate(spans)
        )
        return Where(b, h, q, k, self.keys - self.queries)

    def four(self, block: Block, x_NRT: Tensor) -> Tensor:
        """A tile as [b, h * group, r, T], a view."""
        b, h, r = block.count
        return x_NRT.view(b, h * self.group, r, -1)

    def part(self, block: Block, x: Tensor) -> Tensor:
        """The rows of a block out of a [B,H,Q,...] tensor, a view."""
        return x[block.batch, self.heads_of(block), block.queries]


def scratch(name: str, size: int, *, like: Tensor) -> Tensor:
    """Memory of this thread under a name: fresh pages cost as much as a pass over them.

    Tensors of other kinds than plain CPU ones have allocators, or rules, of their own.
    """
    if type(like) is not Tensor or like.device.type != "cpu":
        return like.new_empty(size)
    held: dict[str, Tensor] = _OF_THREAD.__dict__
    key = f"{name} {like.dtype}"
    found = held.get(key)
    if found is None or len(found) < size:
        with torch.inference_mode(mode=False):
            found = held[key] = _memory(size, dtype=like.dtype)
    return found[:size]


def _memory(size: int, *, dtype: torch.dtype) -> Tensor:
    """Fresh memory of a CPU, of huge pages where Linux gives them: some 2 % of a call's time."""
    length = size * dtype.itemsize
    if length < _PAGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(size, dtype=dtype, device="cpu")
    try:
        region = mmap.mmap(-1, length + _PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        region.madvise(mmap.MADV_HUGEPAGE)
    except OSError:
        return torch.empty(size, dtype=dtype, device="cpu")
    whole = torch.frombuffer(region, dtype=torch.uint8)
    start = -whole.data_ptr() % _PAGE
    return whole[start : start + length].view(dtype)


def _finite(x: Tensor) -> bool:
    """Whether all of x is; a twentieth of the time of x.isfinite().all()."""
    return not x.numel() or all(math.isfinite(end) for end in x.aminmax())


def _on_cpu(bound: Tensor | None, call: Call) -> Tensor | None:
    return None if bound is None else bound.cpu().expand(call.q.shape[:3])


def table_part(table: Tensor, tiler: Tiler, block: Block, keys: slice) -> Tensor:
    """The part of a tensor that broadcasts to [B,H,Q,K] which a tile needs."""
    spans = (block.batch, tiler.heads_of(block), block.queries, keys)
    return table[
        tuple(s if n > 1 else slice(0, 1) for s, n in zip(spans, table.shape, strict=True))
    ]


def logits(tiler: Tiler, block: Block, keys: slice) -> Tensor:
    """Final logits [N, R, T] of a tile, in a buffer; -inf where a key is hidden."""
    s = product(tiler, block, keys)
    call = tiler.call
    if call.softcap is not None:
        s.div_(call.softcap).tanh_().mul_(call.softcap)
    s4 = tiler.four(block, s)
    _add_biases(s4, tiler, block, keys)
    if isinstance(call.weights, Gumbel):
        where = tiler.where(block, keys)
        s4.add_(noise.gumbel(tiler.seed, where, dtype=s.dtype)).div_(call.weights.tau)
    hide(s4, tiler, block, keys, value=-torch.inf)
    return s


def product(tiler: Tiler, block: Block, keys: slice) -> Tensor:
    """Scale * score of a tile."""
    k = tiler.keyed(block, keys, tiler.k)
    if tiler.factor is not None:
        return pairs("logits", tiler.wide_rows(block, tiler.q), k, tiler, factor=tiler.factor)
    if tiler.call.additive is None:
        return pairs("logits", tiler.wide_rows(block, tiler.scaled), k, tiler)
    q, scale = tiler.wide_rows(block, tiler.q), tiler.rows(block, tiler.scale)
    s = tiler.buffer("logits", (len(k), q.shape[1], k.shape[1]))
    vector = _vector_rows(tiler, block)
    step = max(1, TILE_ELEMENTS // max(1, q.numel()))
    for start in range(0, k.shape[1], step):
        hidden = (q[:, :, None] + k[:, None, start : start + step]).tanh_()
        torch.mul(
            torch.einsum("nrth,nrh->nrt", hidden, vector), scale, out=s[..., start : start + step]
        )
    return s


def pairs(name: str, a_NRD: Tensor, b_NTD: Tensor, tiler: Tiler, *, factor: float = 1.0) -> Tensor:
    """factor * a . b of every pair of rows, [N, R, T], in the buffer `name`."""
    out = tiler.buffer(name, (len(a_NRD), a_NRD.shape[1], b_NTD.shape[1]))
    if out.numel() < _LARGE * len(out):
        return torch.baddbmm(out, a_NRD, b_NTD.mT, beta=0, alpha=factor, out=out)
    for a, b, o in zip(a_NRD, b_NTD, out, strict=True):
        torch.addmm(o, a, b.mT, beta=0, alpha=factor, out=o)  # a tenth faster one by one
    return out


def _vector_rows(tiler: Tiler, block: Block) -> Tensor:
    """The vector of the additive score for every row, [N, R, hidden]."""
    vector = tiler.call.additive
    assert vector is not None
    whole = vector.detach().to(tiler.dtype)[None, :, None, :]
    return tiler.wide_rows(block, whole.expand(tiler.q.shape))


def _add_biases(s4: Tensor, tiler: Tiler, block: Block, keys: slice) -> None:
    call = tiler.call
    if call.bias is not None:
        s4.add_(table_part(call.bias.detach(), tiler, block, keys))
    if call.relative is not None:
        table = call.relative.detach()
        rows = table[tiler.heads_of(block)] if len(table) > 1 else table
        s4.add_(rows[:, columns(tiler, block, keys)])
    if call.slopes is not None:
        where = tiler.where(block, keys)
        slopes = call.slopes.detach().to(s4.dtype)[tiler.heads_of(block)].view(-1, 1, 1)
        s4.sub_(slopes * (where.k - where.position).abs())


def columns(tiler: Tiler, block: Block, keys: slice) -> Tensor:
    """Columns of the relative table for a tile, [r, T]."""
    assert tiler.call.relative is not None
    reach = tiler.call.relative.shape[-1] // 2
    where = tiler.where(block, keys)
    return (where.k - where.position).clamp(-reach, reach)[0, 0] + reach


def hide(s4: Tensor, tiler: Tiler, block: Block, keys: slice, *, value: float) -> None:
    """Write `value` where a key is hidden; intervals only touch the columns that need it."""
    if not tiler.hides:
        return
    call = tiler.call
    k = torch.arange(keys.start, keys.stop, device=s4.device)
    if tiler.lo is not None:
        lo = _unexpanded(tiler.part(block, tiler.lo))
        end = min(int(lo.max()), keys.stop) - keys.start
        if end > 0:
            _fill(s4[..., :end], k[:end] < lo[..., None].to(k.device), value)
    if tiler.hi is not None:
        hi = _unexpanded(tiler.part(block, tiler.hi))
        start = max(int(hi.min()), keys.start) - keys.start
        if start < len(k):
            _fill(s4[..., start:], k[start:] >= hi[..., None].to(k.device), value)
    if call.mask is not None:
        _fill(s4, ~table_part(call.mask, tiler, block, keys), value)
    if call.predicate is not None:
        _fill(s4, ~call.predicate.predicate(tiler.where(block, keys)), value)
    if call.bias is not None:
        _fill(s4, table_part(call.bias, tiler, block, keys).isneginf(), value)


def _unexpanded(x: Tensor) -> Tensor:
    """Without what expand() repeated."""
    return x[tuple(slice(None) if step else slice(0, 1) for step in x.stride())]


def _fill(x: Tensor, where: Tensor, value: float) -> None:
    """x.masked_fill_, which takes three times as long."""
    torch.where(where, x.new_tensor(value), x, out=x)


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
            hide(seen, tiler, block, keys, value=0.0)
            top, at = seen.max(-1)
            part.copy_(torch.where(top > 0, at + keys.start, part))
    return first


def mix(weights: Tensor, tiler: Tiler, block: Block, keys: slice) -> Tensor:
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


def keyed_product(a_NRT: Tensor, b_NRD: Tensor, tiler: Tiler, block: Block, keys: slice) -> Tensor:
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


def dropped(tiler: Tiler, block: Block, keys: slice) -> Tensor | None:
    """Dropout factors of a tile, [N, R, T], or None."""
    call = tiler.call
    if not call.dropout:
        return None
    where = tiler.where(block, keys)
    b, h, r = block.count
    factors = noise.kept(tiler.seed, where, rate=call.dropout, dtype=tiler.dtype)
    return factors.reshape(b * h, tiler.group * r, -1)


class Gradients:
    """Sums the gradients of everything the logits are made of, tile by tile."""

    def __init__(self, tiler: Tiler, needs: dict[str, bool]) -> None:
        call = tiler.call
        self.tiler, self.needs = tiler, needs
        zeros = {"q": tiler.q, "k": tiler.k, "v": tiler.v, "scale": tiler.scale}
        tables = {"bias": call.bias, "relative": call.relative, "additive": call.additive}
        zeros |= {name: table for name, table in tables.items() if table is not None}
        self.of = {
            name: torch.zeros(x.shape, dtype=tiler.dtype, device=x.device)
            for name, x in zeros.items()
            if needs[name]
        }

    def add(self, block: Block, keys: slice, ds: Tensor) -> None:
        """Send the gradient of a tile's logits [N, R, T] on; `ds` is overwritten."""
        tiler, call = self.tiler, self.tiler.call
        if isinstance(call.weights, Gumbel):
            ds.div_(call.weights.tau)
        ds4 = tiler.four(block, ds)
        if "bias" in self.of:
            part = table_part(self.of["bias"], tiler, block, keys)
            part.add_(ds4.sum_to_size(part.shape))
        if "relative" in self.of:
            self._add_relative(block, keys, ds4)
        if any(name in self.of for name in ("q", "k", "scale", "additive")):
            if call.softcap is not None:
                capped = product(tiler, block, keys).div_(call.softcap).tanh_()
                ds.mul_(1 - capped.square())
                if tiler.tainted:
                    hide(ds4, tiler, block, keys, value=0.0)
            self._add_product(block, keys, ds)

    def _add_relative(self, block: Block, keys: slice, ds4: Tensor) -> None:
        total = self.of["relative"]
        per_head = ds4.sum(0)
        if len(total) == 1:
            per_head = per_head.sum(0, keepdim=True)
        rows = total[self.tiler.heads_of(block)] if len(total) > 1 else total
        at = columns(self.tiler, block, keys).flatten()
        rows.index_add_(1, at, per_head.flatten(1))

    def _add_product(self, block: Block, keys: slice, dx: Tensor) -> None:
        tiler = self.tiler
        q = tiler.wide_rows(block, tiler.q)
        scale = tiler.rows(block, tiler.scale)
        if tiler.call.additive is not None:
            self._add_additive(block, keys, dx, q, scale)
            return
        k = tiler.keyed(block, keys, tiler.k)
        seen = tiler.seen(block, keys) if tiler.tainted else None
        if "q" in self.of or "scale" in self.of:
            g = torch.bmm(dx, k) if seen is None else seen_product(dx, k, seen)
            if "scale" in self.of:
                self._add_rows("scale", block, (g * q).sum(-1))
            if "q" in self.of:
                self._add_rows("q", block, g * scale)
        if "k" in self.of:
            q = tiler.wide_rows(block, tiler.scaled)
            g = torch.bmm(dx.mT, q) if seen is None else seen_product(dx.mT, q, seen.mT)
            tiler.add_keyed(block, keys, self.of["k"], g)

    def _add_additive(
        self, block: Block, keys: slice, dx: Tensor, q: Tensor, scale: Tensor
    ) -> None:
        tiler = self.tiler
        k = tiler.keyed(block, keys, tiler.k)
        vector = _vector_rows(tiler, block)
        step = max(1, TILE_ELEMENTS // max(1, q.numel()))
        seen = tiler.seen(block, keys) if tiler.tainted else None
        for start in range(0, k.shape[1], step):
            part = slice(keys.start + start, keys.start + min(start + step, k.shape[1]))
            hidden = (q[:, :, None] + k[:, None, start : start + step]).tanh_()
            if seen is not None:
                hidden.masked_fill_(~seen[..., start : start + step, None], 0.0)
            raw = dx[..., start : start + step]
            if "scale" in self.of:
                x = torch.einsum("nrth,nrh->nrt", hidden, vector)
                self._add_rows("scale", block, (raw * x).sum(-1))
            raw = raw * scale
            if "additive" in self.of:
                self._add_vector(block, torch.einsum("nrth,nrt->nrh", hidden, raw))
            slope = (1 - hidden.square_()).mul_(vector[:, :, None]).mul_(raw[..., None])
            if "q" in self.of:
                self._add_rows("q", block, slope.sum(2))
            if "k" in self.of:
                tiler.add_keyed(block, part, self.of["k"], slope.sum(1))

    def _add_vector(self, block: Block, value_NRH: Tensor) -> None:
        b, h, r = block.count
        per_head = value_NRH.view(b, h * self.tiler.group, r, -1).sum((0, 2))
        total = self.of["additive"]
        rows = total[self.tiler.heads_of(block)] if len(total) > 1 else total
        rows.add_(per_head.sum_to_size(rows.shape))

    def _add_rows(self, name: str, block: Block, value: Tensor) -> None:
        part = self.tiler.part(block, self.of[name])
        part.add_(value.reshape(part.shape))
