"""Which keys may a query see? True means visible, everywhere in this library.

With Q queries and K keys, query i stands at position i + K - Q: queries are aligned to the end of
the keys, as a KV cache needs. Window sizes count keys, the query's own position included:
`causal & lookback(3)` shows three keys.

    >>> print((causal & lookback(3)).draw(5))
    #....
    ##...
    ###..
    .###.
    ..###

A function `(b, h, q, k) -> bool` on index tensors, as FlexAttention takes it, is a mask too; its q
counts from 0, whatever K is.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from dataclasses import dataclass, fields
from numbers import Integral
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attentropy.core.errors import ArgumentError, ArgumentTypeError
from attentropy.core.misuse import takes_indices


class Where(NamedTuple):
    """Index tensors that broadcast against each other, and what aligns queries to keys."""

    b: Tensor
    h: Tensor
    q: Tensor
    k: Tensor
    shift: int

    @property
    def position(self) -> Tensor:
        """The place of the query among the keys."""
        return self.q + self.shift


class Extent(NamedTuple):
    """The sizes and the device that a mask is asked for."""

    batch: int
    heads: int
    queries: int
    keys: int
    device: torch.device

    @property
    def shift(self) -> int:
        """What to add to the index of a query for its position among the keys."""
        return self.keys - self.queries

    @property
    def positions(self) -> Tensor:
        """Positions of the queries among the keys, [1,1,Q]."""
        return torch.arange(self.queries, device=self.device).view(1, 1, -1) + self.shift

    def where(self) -> Where:
        """Indices of the whole [B,H,Q,K]."""
        sizes = self[:4]
        b, h, q, k = (
            torch.arange(n, device=self.device).view([-1 if i == j else 1 for j in range(4)])
            for i, n in enumerate(sizes)
        )
        return Where(b, h, q, k, self.shift)


class Interval(NamedTuple):
    """Visible keys lo <= j < hi; int64 tensors that broadcast to [B,H,Q]; None is unbounded."""

    lo: Tensor | None
    hi: Tensor | None


Bound = Callable[[Extent], Tensor]
Made = tuple[Callable[..., Any], tuple[Any, ...]] | str | None


@dataclass(frozen=True, eq=False)
class Mask:
    """A predicate on key and query indices, with the interval of visible keys where it is one.

    Attributes:
        predicate: elementwise on broadcast indices.
        name: for messages.
        lo, hi: bounds of the visible keys; `is_interval` says that they tell everything.
        check: raises if the mask does not fit the extent.
        table: the bool tensor of a mask that is nothing else.
        made: the call that makes this mask, or its name in this module, by which it is pickled.
    """

    predicate: Callable[[Where], Tensor]
    name: str
    lo: Bound | None = None
    hi: Bound | None = None
    is_interval: bool = False
    check: Callable[[Extent], None] | None = None
    table: Tensor | None = None
    made: Made = None

    @takes_indices
    def __call__(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor, *, shift: int = 0) -> Tensor:
        """Visible? Indices broadcast; query q stands at position q + shift among the keys."""
        return self.predicate(Where(b, h, q, k, shift))

    def __and__(self, other: Mask) -> Mask:
        other = as_mask(other)
        return Mask(
            lambda w: self.predicate(w) & other.predicate(w),
            f"({self.name} & {other.name})",
            lo=_meet(self.lo, other.lo, torch.maximum),
            hi=_meet(self.hi, other.hi, torch.minimum),
            is_interval=self.is_interval and other.is_interval,
            check=_both(self, other),
            made=(operator.and_, (self, other)),
        )

    def __or__(self, other: Mask) -> Mask:
        other = as_mask(other)
        lo, hi, is_interval = _union(self, other)
        return Mask(
            lambda w: self.predicate(w) | other.predicate(w),
            f"({self.name} | {other.name})",
            lo=lo,
            hi=hi,
            is_interval=is_interval,
            check=_both(self, other),
            made=(operator.or_, (self, other)),
        )

    def __rand__(self, other: Mask) -> Mask:
        return as_mask(other) & self

    def __ror__(self, other: Mask) -> Mask:
        return as_mask(other) | self

    def __invert__(self) -> Mask:
        one_sided = self.is_interval and (self.lo is None) != (self.hi is None)
        return Mask(
            lambda w: ~self.predicate(w),
            f"~{self.name}",
            lo=self.hi if one_sided else None,
            hi=self.lo if one_sided else None,
            is_interval=one_sided,
            check=self.check,
            made=(operator.invert, (self,)),
        )

    def __reduce__(self) -> Any:
        return self.made or (Mask, tuple(getattr(self, field.name) for field in fields(self)))

    def __repr__(self) -> str:
        return f"Mask({self.name})"

    def fits(self, extent: Extent) -> None:
        """Raise if the mask cannot serve this extent."""
        if self.check is not None:
            self.check(extent)

    def interval(self, extent: Extent) -> Interval:
        """Bounds of the visible keys of each row; hidden keys may remain between them."""
        return Interval(
            None if self.lo is None else self.lo(extent),
            None if self.hi is None else self.hi(extent),
        )

    def dense(self, extent: Extent) -> Tensor:
        """The whole mask, bool [B,H,Q,K]."""
        self.fits(extent)
        return self.predicate(extent.where()).expand(extent[:4])

    def draw(self, queries: int, keys: int | None = None) -> str:
        """Rows of the mask as text: # is visible, . is hidden."""
        extent = Extent(1, 1, queries, queries if keys is None else keys, torch.device("cpu"))
        rows = self.dense(extent)[0, 0].tolist()
        return "\n".join("".join("#" if seen else "." for seen in row) for row in rows)


def as_mask(value: object) -> Mask:
    """A Mask as it is; a bool tensor or a function (b, h, q, k) -> bool becomes one."""
    if isinstance(value, Mask):
        return value
    if isinstance(value, Tensor):
        if value.dim() > 4:
            raise ArgumentError("mask", "of at most 4 dimensions", list(value.shape))
        return dense(value)
    if not callable(value) or not _takes_four(value):
        rule = "a Mask, a tensor or a function of (b, h, q, k)"
        raise ArgumentTypeError("mask", rule, repr(value))
    name = getattr(value, "__name__", type(value).__name__)
    return Mask(lambda w: _bools(name, value(w.b, w.h, w.q, w.k)), name, made=(as_mask, (value,)))


def _takes_four(function: Callable[..., Any]) -> bool:
    if torch.compiler.is_compiling():
        return True
    try:
        inspect.signature(function).bind(*range(4))
    except TypeError:
        return False
    except ValueError:  # a function that tells no signature
        return True
    return True


def _bools(name: str, seen: object) -> Tensor:
    if not isinstance(seen, Tensor) or seen.dtype != torch.bool:
        got = seen.dtype if isinstance(seen, Tensor) else repr(seen)
        raise ArgumentTypeError(f"mask {name}(b, h, q, k)", "a bool tensor", got)
    return seen


def _both(a: Mask, b: Mask) -> Callable[[Extent], None]:
    def check(extent: Extent) -> None:
        a.fits(extent)
        b.fits(extent)

    return check


def _meet(
    a: Bound | None, b: Bound | None, join: Callable[[Tensor, Tensor], Tensor]
) -> Bound | None:
    if a is None or b is None:
        return b if a is None else a
    return lambda extent: join(a(extent), b(extent))


def _union(a: Mask, b: Mask) -> tuple[Bound | None, Bound | None, bool]:
    """Bounds of a union: an interval only if both parts start, or both end, without a bound."""
    lo = _meet(a.lo, b.lo, torch.minimum) if a.lo and b.lo else None
    hi = _meet(a.hi, b.hi, torch.maximum) if a.hi and b.hi else None
    same_side = (a.lo is None and b.lo is None) or (a.hi is None and b.hi is None)
    return lo, hi, same_side and a.is_interval and b.is_interval


full = Mask(lambda w: torch.ones_like(w.k, dtype=torch.bool), "full", is_interval=True, made="full")
"""Every key."""

causal = Mask(
    lambda w: w.k <= w.position,
    "causal",
    hi=lambda e: e.positions + 1,
    is_interval=True,
    made="causal",
)
"""Keys up to the query's own position.

    >>> print(causal.draw(3, 5))
    ###..
    ####.
    #####
"""


def lookback(size: int) -> Mask:
    """Hide keys that are `size` or more behind.

    `causal & lookback(n)` shows n keys, self included.

    >>> print(lookback(2).draw(4))
    ####
    ####
    .###
    ..##
    """
    size = _count("lookback", "size", size, least=1)
    return Mask(
        lambda w: w.position - w.k < size,
        f"lookback({size})",
        lo=lambda e: e.positions - (size - 1),
        is_interval=True,
        made=(lookback, (size,)),
    )


def lookahead(size: int) -> Mask:
    """Hide keys `size` or more ahead; `lookahead(1)` is causal.

    >>> print(lookahead(2).draw(4))
    ##..
    ###.
    ####
    ####
    """
    size = _count("lookahead", "size", size, least=1)
    return Mask(
        lambda w: w.k - w.position < size,
        f"lookahead({size})",
        hi=lambda e: e.positions + size,
        is_interval=True,
        made=(lookahead, (size,)),
    )


def prefix(size: int) -> Mask:
    """Show the first `size` keys only.

    `causal | prefix(n)` is the mask of a prefix LM:

    >>> print((causal | prefix(2)).draw(4))
    ##..
    ##..
    ###.
    ####
    """
    size = _count("prefix", "size", size, least=0)
    return Mask(
        lambda w: w.k < size,
        f"prefix({size})",
        hi=lambda e: torch.full_like(e.positions, size),
        is_interval=True,
        made=(prefix, (size,)),
    )


def strided(step: int) -> Mask:
    """Show keys whose distance from the query is a multiple of `step`.

    >>> print((causal & strided(2)).draw(4))
    #...
    .#..
    #.#.
    .#.#
    """
    step = _count("strided", "step", step, least=1)
    return Mask(
        lambda w: (w.position - w.k) % step == 0, f"strided({step})", made=(strided, (step,))
    )


def padding(lengths: Tensor) -> Mask:
    """Show the first lengths[b] keys of batch entry b.

    >>> print(padding(torch.tensor([2])).draw(2, 4))
    ##..
    ##..
    """
    lengths = _integers("padding", "lengths", lengths, dims=1)

    def check(extent: Extent) -> None:
        if len(lengths) not in (1, extent.batch):
            rule = f"of shape [B] with B = {extent.batch}"
            raise ArgumentError("padding: lengths", rule, list(lengths.shape))
        if torch.compiler.is_compiling() or not len(lengths):
            return
        low, high = (int(bound) for bound in lengths.aminmax())
        if low < 0 or high > extent.keys:
            rule = f"between 0 and the number of keys {extent.keys}"
            raise ArgumentError("padding: lengths", rule, lengths.tolist())

    return Mask(
        lambda w: w.k < lengths.to(w.k.device)[w.b % len(lengths)],
        f"padding({len(lengths)} lengths)",
        hi=lambda e: lengths.to(e.device).view(-1, 1, 1),
        is_interval=True,
        check=check,
        made=(padding, (lengths,)),
    )


def documents(ids: Tensor) -> Mask:
    """Show keys of the query's own document; ids [K] or [B,K] names the document of each key.

    Documents are runs of equal ids: an id that comes back later starts another document.

    >>> print(documents(torch.tensor([0, 0, 1, 1, 1])).draw(5))
    ##...
    ##...
    ..###
    ..###
    ..###
    """
    ids = _integers("documents", "ids", ids, dims=2)
    first, last = _runs(ids)

    def check(extent: Extent) -> None:
        if ids.shape[0] not in (1, extent.batch) or ids.shape[1] != extent.keys:
            rule = f"of shape [K] or [B,K] with B = {extent.batch}, K = {extent.keys}"
            raise ArgumentError("documents: ids", rule, list(ids.shape))
        if extent.queries > extent.keys:
            rule = f"at most the number of keys {extent.keys}, or queries have no document"
            raise ArgumentError("documents: the number of queries", rule, extent.queries)

    def predicate(w: Where) -> Tensor:
        row = w.b % ids.shape[0]
        lo, hi = first.to(w.k.device)[row, w.position], last.to(w.k.device)[row, w.position]
        return (lo <= w.k) & (w.k < hi)

    return Mask(
        predicate,
        f"documents({list(ids.shape)})",
        lo=lambda e: first.to(e.device)[:, None, e.shift :],
        hi=lambda e: last.to(e.device)[:, None, e.shift :],
        is_interval=True,
        check=check,
        made=(documents, (ids,)),
    )


def _runs(ids_BK: Tensor) -> tuple[Tensor, Tensor]:
    """First index of the run of equal ids at each place, and one past its last."""
    keys = ids_BK.shape[1]
    place = torch.arange(keys, device=ids_BK.device).expand_as(ids_BK)
    if not keys:
        return place, place
    edge = torch.ones_like(ids_BK[:, :1], dtype=torch.bool)
    changes = ids_BK[:, 1:] != ids_BK[:, :-1]
    first = place * torch.cat([edge, changes], 1)
    after = torch.where(torch.cat([changes, edge], 1), place + 1, keys)
    return first.cummax(1).values, after.flip(1).cummin(1).values.flip(1)


def dense(visible: Tensor) -> Mask:
    """A bool tensor that broadcasts to [B,H,Q,K]; True is visible.

    >>> print(dense(torch.tensor([[True, False], [True, True]])).draw(2))
    #.
    ##
    """
    if not isinstance(visible, Tensor) or visible.dtype != torch.bool:
        kind = visible.dtype if isinstance(visible, Tensor) else type(visible).__name__
        raise ArgumentTypeError("dense: visible", "a bool tensor", kind)
    if visible.dim() > 4:
        raise ArgumentError("dense: visible", "of at most 4 dimensions", list(visible.shape))
    table = visible[(None,) * (4 - visible.dim())]

    def predicate(w: Where) -> Tensor:
        b, h, q, k = (
            i if n > 1 else torch.zeros_like(i) for i, n in zip(w[:4], table.shape, strict=True)
        )
        return table.to(w.k.device)[b, h, q, k]

    return Mask(
        predicate,
        f"dense({list(visible.shape)})",
        check=lambda e: check_broadcast("dense: visible", table, e[:4]),
        table=visible,
        made=(dense, (visible,)),
    )


def check_broadcast(name: str, value: Tensor, shape: tuple[int, ...]) -> None:
    """Raise unless a 4-D tensor broadcasts to [B,H,Q,K]."""
    # == and not `in`: under torch.compile sizes are symbols
    fits = all(
        n == 1 or n == want  # noqa: PLR1714
        for n, want in zip(value.shape, shape, strict=True)
    )
    if not fits:
        raise ArgumentError(name, f"broadcastable to [B,H,Q,K] = {list(shape)}", list(value.shape))


def check_table(name: str, x: Tensor, extent: Extent) -> Tensor:
    """A table with four dimensions; raises unless it broadcasts to [B,H,Q,K] on the device."""
    if x.dim() > 4:
        raise ArgumentError(name, "of at most 4 dimensions", list(x.shape))
    if x.device != extent.device:
        raise ArgumentError(f"{name}.device", f"that of q, {extent.device}", x.device)
    x = x[(None,) * (4 - x.dim())]
    check_broadcast(name, x, extent[:4])
    return x


def _count(owner: str, name: str, value: int, *, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ArgumentTypeError(f"{owner}: {name}", "an integer", repr(value))
    if value < least:
        raise ArgumentError(f"{owner}: {name}", f">= {least}", value)
    return int(value)


def _integers(owner: str, name: str, value: Tensor, *, dims: int) -> Tensor:
    try:
        value = value if isinstance(value, Tensor) else torch.as_tensor(value, device="cpu")
    except (TypeError, ValueError, RuntimeError):
        raise ArgumentTypeError(f"{owner}: {name}", "an integer tensor", repr(value)) from None
    if value.is_floating_point() or value.is_complex() or value.dtype == torch.bool:
        raise ArgumentTypeError(f"{owner}: {name}", "an integer tensor", value.dtype)
    while value.dim() < dims:
        value = value[None]
    if value.dim() != dims:
        raise ArgumentError(f"{owner}: {name}", f"of at most {dims} dimensions", list(value.shape))
    return value.long()
