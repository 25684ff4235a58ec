"""Which keys each row of a call sees, and how many: one type for masks, kernels and models.

Key j is visible to row i where all of these allow it:

    lo_i <= j < hi_i,   table_ij,   predicate(b, h, i, j),   added_ij > -inf.

Each part is optional; a mask that is an interval has bounds only. Selecting some rows and keys
keeps their indices, so that bounds and predicates keep their meaning:

    >>> from attentropy.core.masks import Extent, causal
    >>> seen = Visibility.of_mask(causal, Extent(1, 1, 4, 6, torch.device("cpu")))
    >>> seen.visible.tolist()
    [[[3, 4, 5, 6]]]
    >>> seen.select(Span(queries=slice(1, 3), keys=slice(3, 6))).dense().int().tolist()
    [[[[1, 0, 0], [1, 1, 0]]]]
"""

import operator
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from attentropy.core.masks import causal, full
from attentropy.core.masks.extent import Extent, Where, check_table, summed
from attentropy.core.masks.mask import Mask

_T = TypeVar("_T")
SLICE = 1 << 22
ALL = slice(None)


class Span(NamedTuple):
    """Some rows and keys of a call.

    Attributes:
        batch: batch entries.
        heads: query heads.
        queries: a slice, or an index [R].
        keys: keys.
    """

    batch: slice = ALL
    heads: slice = ALL
    queries: slice | Tensor = ALL
    keys: slice = ALL

    def of(self, x: Tensor) -> Tensor:
        """The part of a tensor [B,H,Q] or [B,H,Q,K]; dimensions of size 1 stay as they are.

        Args:
            x: any tensor that broadcasts to [B,H,Q] or [B,H,Q,K].
        """
        return x[tuple(s if n != 1 else ALL for s, n in zip(self, x.shape, strict=False))]


class Origin(NamedTuple):
    """Where rows and keys stand in the whole call.

    Attributes:
        batch: the first batch entry.
        heads: the first query head.
        queries: the first query, or an index [Q].
        keys: the first key, or an index that broadcasts to [B,H,Q,1].
        shift: what to add to the index of a query for its position among the keys.
    """

    batch: int
    heads: int
    queries: int | Tensor
    keys: int | Tensor
    shift: int


class Limits(NamedTuple):
    """The range of keys that some rows look at.

    Attributes:
        lo: the least and the greatest first visible key.
        hi: the least and the greatest end of the visible keys.
    """

    lo: tuple[int, int]
    hi: tuple[int, int]

    def hide(self, keys: range) -> bool:
        """Whether no row sees any of the keys.

        Args:
            keys: a range of keys.
        """
        return self.hi[1] <= keys.start or self.lo[0] >= keys.stop

    def show(self, keys: range) -> bool:
        """Whether the bounds show all the keys to every row.

        Args:
            keys: a range of keys.
        """
        return self.lo[1] <= keys.start and self.hi[0] >= keys.stop


class Visibility(NamedTuple):
    """Which keys each row of a call sees.

    Attributes:
        extent: sizes and device.
        lo: int32, broadcastable to [B,H,Q], first visible key; None means 0.
        hi: like `lo`, one past the last visible key; None means all.
        table: bool, 4-D and broadcastable to [B,H,Q,K].
        predicate: a mask that is not an interval, called with indices.
        added: the bias, whose entries of -inf hide keys; 4-D and broadcastable to [B,H,Q,K].
        shape: "full", "causal" (no key after the query's own) or "other": what the parts amount
            to, `added` apart.
        origin: where rows and keys stand in the whole call; None if this is the whole.
        counted: the number of visible keys of each row, where it is known.
    """

    extent: Extent
    lo: Tensor | None = None
    hi: Tensor | None = None
    table: Tensor | None = None
    predicate: Mask | None = None
    added: Tensor | None = None
    shape: str = "other"
    origin: Origin | None = None
    counted: Tensor | None = None

    @classmethod
    def of_mask(cls, mask: Mask | None, extent: Extent) -> "Visibility":
        """What a mask shows; raises if it does not fit.

        Args:
            mask: any mask; None shows every key.
            extent: sizes and device of the call.
        """
        if mask is None:
            mask = full
        if mask.table is not None:
            return cls(extent, table=check_table("mask", mask.table, extent))
        mask.fits(extent)
        added = None if mask.added is None else check_table("mask", mask.added, extent)
        lo, hi = (_clamped(x, extent) for x in mask.interval(extent))
        if mask.is_interval:
            shape = "full" if lo is None and hi is None else "other"
            return cls(extent, lo, hi, added=added, shape="causal" if mask is causal else shape)
        if torch.compiler.is_compiling():
            table = check_table("mask", mask.predicate(extent.where()), extent)
            return cls(extent, table=table, added=added)
        return cls(extent, lo, hi, predicate=mask, added=added)

    @property
    def where(self) -> Where:
        """Indices of rows and keys in the whole call, each broadcastable to [B,H,Q,K]."""
        if self.origin is None:
            return self.extent.where()
        sizes, device, firsts = self.extent[:4], self.extent.device, self.origin[:4]
        b, h, q, k = (
            _index(first, n, dim, device=device)
            for dim, (first, n) in enumerate(zip(firsts, sizes, strict=True))
        )
        return Where(b, h, q, k, self.origin.shift)

    @property
    def positions(self) -> Tensor:
        """The place of each query among the keys, [Q]."""
        return self.where.position.flatten()

    @property
    def is_interval(self) -> bool:
        """Whether the bounds tell everything."""
        return self.table is None and self.predicate is None and self.added is None

    @property
    def hides(self) -> bool:
        """Whether any key may be hidden."""
        return not (self.is_interval and self.lo is None and self.hi is None)

    @property
    def visible(self) -> Tensor:
        """Number of visible keys of each row, int64, broadcastable to [B,H,Q]; never negative."""
        if self.counted is not None:
            return self.counted
        one_range = self.origin is None or isinstance(self.origin.keys, int)
        return self._span() if self.is_interval and one_range else self._tally()

    def with_visible(self) -> "Visibility":
        """The same, with the count of visible keys computed."""
        return self if self.counted is not None else self._replace(counted=self.visible)

    def meet(self, mask: Mask) -> "Visibility":
        """The keys that both this and a mask show. This must be a whole call: select afterwards.

        Args:
            mask: hides more keys; it must fit the extent. What a float mask adds is added.

        >>> from attentropy.core.masks import Extent, causal, lookback
        >>> seen = Visibility.of_mask(causal, Extent(1, 1, 3, 3, torch.device("cpu")))
        >>> seen.meet(lookback(2)).dense().int().tolist()
        [[[[1, 0, 0], [1, 1, 0], [0, 1, 1]]]]
        """
        if self.origin is not None:
            raise ValueError("a selection of rows and keys cannot meet a mask")
        other = Visibility.of_mask(mask, self.extent)
        shapes = {self.shape, other.shape} - {"full"}
        return self._replace(
            lo=_joined(self.lo, other.lo, torch.maximum),
            hi=_joined(self.hi, other.hi, torch.minimum),
            table=_joined(self.table, other.table, torch.logical_and),
            predicate=_joined(self.predicate, other.predicate, operator.and_),
            added=_joined(self.added, other.added, summed),
            shape="other" if len(shapes) > 1 else next(iter(shapes), "full"),
            counted=None,
        )

    def in_two(self) -> "tuple[Visibility, Visibility] | None":
        """Two disjoint intervals for each row, which together show the same keys as this.

        None where the mask is not a union of two intervals, or where something else hides keys too.

        >>> from attentropy.core.masks import Extent, causal, lookback, prefix
        >>> mask = causal & (lookback(2) | prefix(1))
        >>> one, two = Visibility.of_mask(mask, Extent(1, 1, 4, 4, torch.device("cpu"))).in_two()
        >>> one.visible.tolist(), two.visible.tolist()
        ([[[1, 2, 1, 1]]], [[[0, 0, 2, 2]]])
        """
        if self.predicate is None or self.predicate.either is None:
            return None
        if self.table is not None or self.added is not None or self.origin is not None:
            return None
        first, second = (
            self._replace(predicate=None, counted=None, shape="other").meet(one)
            for one in self.predicate.either
        )
        return _apart(first, second)

    def sees(self) -> Tensor:
        """Whether each key is visible, bool, broadcastable to [B,H,Q,K]."""
        where = self.where
        seen = torch.ones_like(where.k, dtype=torch.bool)
        if self.lo is not None:
            seen = seen & (where.k >= self.lo[..., None])
        if self.hi is not None:
            seen = seen & (where.k < self.hi[..., None])
        if self.table is not None:
            seen = seen & self.table
        if self.predicate is not None:
            seen = seen & self.predicate.predicate(where)
        if self.added is not None:
            seen = seen & ~self.added.isneginf()
        return seen

    def dense(self) -> Tensor:
        """Whether each key is visible, bool [B,H,Q,K]; O(n^2) memory."""
        return self.sees().expand(self.extent[:4])

    def tabled(self) -> "Visibility":
        """The same without a predicate: one table replaces bounds, table and predicate."""
        table = self._replace(added=None).dense()
        return self._replace(table=table, predicate=None, lo=None, hi=None)

    def select(self, span: Span) -> "Visibility":
        """Some rows and keys; they keep their indices in the whole call.

        Args:
            span: which rows and keys.
        """
        before = self.origin or Origin(0, 0, 0, 0, self.extent.shift)
        sizes = [_size(part, n) for part, n in zip(span, self.extent[:4], strict=True)]
        batch, heads, queries, keys = (
            _moved(first, part) for first, part in zip(before[:4], span, strict=True)
        )
        lo, hi, table, added = (
            None if x is None else span.of(x) for x in (self.lo, self.hi, self.table, self.added)
        )
        known = self.counted is not None and span.keys is ALL
        return Visibility(
            Extent(sizes[0], sizes[1], sizes[2], sizes[3], self.extent.device),
            lo,
            hi,
            table,
            self.predicate,
            added,
            self.shape,
            Origin(batch, heads, queries, keys, before.shift),  # type: ignore[arg-type]
            span.of(self.counted) if self.counted is not None and known else None,
        )

    def pairs(self, key: Tensor) -> "Visibility":
        """One key for each row; the last dimension becomes 1.

        Indices outside the keys are hidden.

        Args:
            key: int64, broadcastable to [B,H,Q].
        """
        at = key[..., None]
        inside = (at >= 0) & (at < self.extent.keys)
        index = at.clamp(0, max(0, self.extent.keys - 1))
        table, added = (
            None if x is None else gathered(x, index, self.extent) for x in (self.table, self.added)
        )
        before = self.origin or Origin(0, 0, 0, 0, self.extent.shift)
        return self._replace(
            extent=self.extent._replace(keys=1),
            table=inside if table is None else table & inside,
            added=added,
            shape="other",
            origin=before._replace(keys=index + before.keys),
            counted=None,
        )

    def rebased(self) -> "Visibility":
        """The same as a separate whole, in which rows and keys count from 0."""
        if self.origin is None:
            return self
        lo, hi = self.bounds()
        predicate = None if self.predicate is None else _asked_at(self.predicate, self.where)
        return self._replace(lo=lo, hi=hi, predicate=predicate, origin=None)

    def limits(self) -> "Limits":
        """The range of keys that all rows look at, as numbers; a GPU has to be waited for."""
        keys = self.extent.keys
        lo = (0, 0) if self.lo is None else _ends(self.lo)
        hi = (keys, keys) if self.hi is None else _ends(self.hi)
        return Limits(lo, hi)

    def bounds(self) -> tuple[Tensor | None, Tensor | None]:
        """The first visible key and one past the last, counted from the first key held here."""
        if self.origin is None:
            return self.lo, self.hi
        first = self.origin.keys
        lo, hi = (None if x is None else _clamped(x - first, self.extent) for x in self[1:3])
        return lo, hi

    def _span(self) -> Tensor:
        shape, (lo, hi) = (1, 1, self.extent.queries), self.bounds()
        if lo is None and hi is None:
            return torch.full(shape, self.extent.keys, device=self.extent.device)
        last: Tensor | int = self.extent.keys if hi is None else hi.long()
        span = last if lo is None else (last - lo.long()).clamp(min=0)
        assert isinstance(span, Tensor)
        return span.expand(*span.shape[:2], self.extent.queries)

    def _tally(self) -> Tensor:
        """Counted in slices of rows, so that nothing of size n x n is held."""
        if torch.compiler.is_compiling():  # slices would be a graph for every length
            return self.dense().sum(-1)
        step = max(1, SLICE // max(1, self.extent.keys))
        queries = self.extent.queries
        counts = []
        for start in range(0, queries, step) or (0,):
            rows = slice(start, min(start + step, queries))
            seen = self.select(Span(queries=rows)).sees()
            counts.append(seen.expand(*seen.shape[:2], rows.stop - start, -1).sum(-1))
        return torch.cat(counts, 2)


def _joined(a: _T | None, b: _T | None, join: Callable[[_T, _T], _T]) -> _T | None:
    """Both parts as one; None stands for a part that hides nothing."""
    if a is None or b is None:
        return b if a is None else a
    return join(a, b)


def _apart(a: Visibility, b: Visibility) -> tuple[Visibility, Visibility]:
    """Two intervals as the one that begins first, and what the other shows beyond its end."""
    (a_lo, a_hi), (b_lo, b_hi) = (_bounded(one) for one in (a, b))
    # an interval without keys is the second one, whatever its bounds are
    swap = (b_hi > b_lo) & ((b_lo < a_lo) | (a_hi <= a_lo))
    lo, hi = torch.where(swap, b_lo, a_lo), torch.where(swap, b_hi, a_hi)
    more_lo, more_hi = torch.where(swap, a_lo, b_lo), torch.where(swap, a_hi, b_hi)
    return a._replace(lo=lo, hi=hi), a._replace(lo=torch.maximum(more_lo, hi), hi=more_hi)


def _bounded(seen: Visibility) -> tuple[Tensor, Tensor]:
    """Both bounds of each row, [B or 1,H or 1,Q]."""
    extent = seen.extent
    rows = torch.zeros(1, 1, extent.queries, dtype=torch.int32, device=extent.device)
    lo = rows if seen.lo is None else seen.lo + rows
    hi = rows + extent.keys if seen.hi is None else seen.hi + rows
    return lo, hi


def _asked_at(mask: Mask, where: Where) -> Mask:
    """The mask, asked by places within `where`."""
    b, h, q, k = (index.flatten() for index in where[:4])
    return Mask(
        lambda w: mask.predicate(Where(b[w.b], h[w.h], q[w.q], k[w.k], where.shift)), mask.name
    )


def _index(first: int | Tensor, count: int, dim: int, *, device: torch.device) -> Tensor:
    """Indices along a dimension of four."""
    if isinstance(first, Tensor) and first.dim() == 4:
        return first
    shape = [-1 if i == dim else 1 for i in range(4)]
    if isinstance(first, Tensor):
        return first.view(shape)
    return torch.arange(first, first + count, device=device).view(shape)


def _size(part: slice | Tensor, count: int) -> int:
    """How many of `count` a part has."""
    if isinstance(part, Tensor):
        return part.shape[0]
    # len(range(...)) would be a graph for every length under torch.compile
    return count if part == ALL else len(range(count)[part])


def _moved(first: int | Tensor, part: slice | Tensor) -> int | Tensor:
    """The first index, or all of them, of a part of what starts at `first`."""
    if isinstance(first, Tensor):
        return first if part is ALL else first[part]
    return first + part if isinstance(part, Tensor) else first + (part.start or 0)


def gathered(x: Tensor, key: Tensor, extent: Extent) -> Tensor:
    """The column of a table that each row asks for, [...,1].

    Args:
        x: a table that broadcasts to [B,H,Q,K].
        key: int64 [...,1], broadcastable to [B,H,Q,1].
        extent: sizes of the call.
    """
    shape = torch.broadcast_shapes(x.shape[:3], key.shape[:3])
    return x.expand(*shape, extent.keys).gather(-1, key.expand(*shape, 1))


def _ends(x: Tensor) -> tuple[int, int]:
    """The least and the greatest entry; 0 and 0 where there is none."""
    if not x.numel():
        return 0, 0
    low, high = torch.stack(x.aminmax()).tolist()
    return low, high


def _clamped(bound: Tensor | None, extent: Extent) -> Tensor | None:
    return None if bound is None else bound.clamp(0, extent.keys).to(torch.int32)
