"""Which keys does each query of a watched call see, and which queries count?

A model hands over a mask in its own form: a flag, a bool table, a float table with the smallest
number in place of -inf. Here it becomes what attend() takes, and an interval of keys per query
wherever it is one, so that nothing of size n x n is done twice. Padded queries are found too: a
query of self-attention that may not see its own key is padding.
"""

import weakref
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from attentropy.core.errors import ArgumentError
from attentropy.core.masks import Extent, Mask, as_mask, causal

FAR = -1e4


@dataclass(frozen=True, eq=False, kw_only=True)
class Sight:
    """Who sees whom among `queries` and `keys`.

    Attributes:
        mask: what attend() takes; None means every key.
        lo, hi: visible keys lo <= j < hi, broadcastable to [B,H,Q], where the mask is an interval.
        table: bool, 4-D, broadcastable to [B,H,Q,K], where it is not.
        own: the key at the query's own place [Q]; None in cross-attention.
        is_causal: no query sees a key after its own.
        from_model: read from a mask of the model, in which there may be padding.
        real: queries that are no padding, bool [B,1,Q], where the model was told so besides.
        choice_from: the query from which on all see two keys or more; None if it is not known.
        notes: what others worked out of it, for the next layer.
    """

    queries: int
    keys: int
    mask: Mask | Tensor | None = None
    lo: Tensor | None = None
    hi: Tensor | None = None
    table: Tensor | None = None
    own: Tensor | None = None
    is_causal: bool = False
    from_model: bool = False
    real: Tensor | None = None
    choice_from: int | None = None
    notes: dict[Any, Any] = field(default_factory=dict)

    def sees(self, key: Tensor) -> Tensor:
        """May each query see this one key? `key` broadcasts to [B,H,Q], and so does the answer."""
        if self.table is not None:
            rows = (self.table.shape[0], self.table.shape[1], self.queries, self.keys)
            index = key.clamp(0, self.keys - 1)
            shape = torch.broadcast_shapes(rows[:3], index.shape)
            table = self.table.expand(*shape, self.keys)
            seen = table.gather(-1, index.expand(shape)[..., None])[..., 0]
        else:
            seen = self._within(key)
        return seen & (key >= 0) & (key < self.keys)

    def rows(self, index: Tensor, *, device: torch.device) -> Tensor | None:
        """Visible keys of the queries `index` [R], bool [B,H,R,K]; None if every key is."""
        if self.table is not None:
            return self.table[:, :, index] if self.table.shape[2] > 1 else self.table
        if self.lo is None and self.hi is None:
            return None
        key = torch.arange(self.keys, device=device)
        chosen = Sight(
            queries=len(index), keys=self.keys, lo=_some(self.lo, index), hi=_some(self.hi, index)
        )
        return chosen._within(key, column=True)

    def _within(self, key: Tensor, *, column: bool = False) -> Tensor:
        seen = torch.ones_like(key, dtype=torch.bool)
        if self.lo is not None:
            seen = seen & (key >= (self.lo[..., None] if column else self.lo))
        if self.hi is not None:
            seen = seen & (key < (self.hi[..., None] if column else self.hi))
        return seen

    def visible(self, *, device: torch.device) -> Tensor:
        """How many keys each query sees, broadcastable to [B,H,Q]."""
        if self.table is not None:
            return self.table.expand(*self.table.shape[:3], self.keys).sum(-1)
        count = torch.full((1, 1, 1), self.keys, device=device) if self.hi is None else self.hi
        return (count if self.lo is None else count - self.lo).clamp(min=0)

    def meet(self, mask: Mask, *, batch: int, heads: int, device: torch.device) -> "Sight":
        """This sight where `mask` allows it too."""
        extent = Extent(batch, heads, self.queries, self.keys, device)
        unknown: dict[str, Any] = {"choice_from": None, "notes": {}}
        both = mask if self.mask is None else mask & as_mask(self._shown())
        if isinstance(self.mask, Tensor) and self.mask.is_floating_point():
            shown = self.mask.masked_fill(~mask.dense(extent), -torch.inf)
            table = both.dense(extent)
            return replace(self, mask=shown, table=table, lo=None, hi=None, **unknown)
        if not both.is_interval:
            table = both.dense(extent)
            return replace(self, mask=table, table=table, lo=None, hi=None, **unknown)
        lo, hi = both.interval(extent)
        return replace(self, mask=both, lo=lo, hi=hi, **unknown)

    def _shown(self) -> Mask | Tensor:
        """The mask, without what a float one adds."""
        assert self.mask is not None
        return self.mask if isinstance(self.mask, Mask) or self.table is None else self.table

    def counted(self) -> Tensor | None:
        """Queries that are no padding, broadcastable to [B,H,Q]; None if all count."""
        if self.own is None or not self.from_model:
            return self.real
        seen = self.sees(self.own.view(1, 1, -1))
        return seen if self.real is None else seen & self.real

    def looks_behind(self, *, device: torch.device) -> Tensor:
        """is_causal as a tensor [], also where a compiled call has not looked into its table."""
        if self.own is None or self.table is None or self.table.shape[-1] != self.keys:
            return torch.full((), self.is_causal, device=device)
        key = torch.arange(self.keys, device=device)
        return ~(self.table & (key > self.own[:, None])).any()

    def first(self) -> Tensor | None:
        """The first key that any query sees, [B,1,1]; None if it is key 0 for certain."""
        if self.table is not None:
            seen = self.table.any(2).any(1)
            return seen.int().argmax(-1).view(-1, 1, 1)
        if self.lo is None:
            return None
        last = self.keys if self.hi is None else self.hi
        lo = self.lo.masked_fill(self.lo >= last, self.keys)
        return lo.amin((1, 2)).view(-1, 1, 1)


def _some(bound: Tensor | None, index: Tensor) -> Tensor | None:
    if bound is None or bound.shape[-1] == 1:
        return bound
    return bound[..., index]


def everything(queries: int, keys: int, *, device: torch.device, cross: bool = False) -> Sight:
    """Every query sees every key."""
    own = None if cross else _own(queries, keys, device=device)
    return Sight(
        queries=queries,
        keys=keys,
        own=own,
        is_causal=queries == 1 and not cross,
        choice_from=0 if keys > 1 else None,
    )


def causal_from_end(queries: int, keys: int, *, device: torch.device) -> Sight:
    """Query i sees keys up to i + K - Q, as a KV cache needs; kept for the next layer."""
    if torch.compiler.is_compiling():
        return _triangle(queries, keys, device=device)
    name = (queries, keys, str(device), torch.is_inference_mode_enabled())
    if name not in _triangles:
        _keep(_triangles, name, _triangle(queries, keys, device=device))
    return _triangles[name]


def _triangle(queries: int, keys: int, *, device: torch.device) -> Sight:
    own = _own(queries, keys, device=device)
    hi = (own + 1).view(1, 1, -1)
    alone = max(0, 1 - keys + queries)
    return Sight(
        queries=queries,
        keys=keys,
        mask=causal,
        hi=hi,
        own=own,
        is_causal=True,
        choice_from=alone if alone < queries else None,
    )


def causal_from_start(queries: int, keys: int, *, device: torch.device) -> Sight:
    """Query i sees keys up to i, as is_causal of scaled_dot_product_attention has it."""
    own = torch.arange(queries, device=device)
    hi = (own + 1).clamp(max=keys).view(1, 1, -1)
    return Sight(
        queries=queries,
        keys=keys,
        mask=_interval(None, hi),
        hi=hi,
        own=own,
        is_causal=True,
    )


def from_table(mask: Tensor, queries: int, keys: int, *, cross: bool = False) -> Sight:
    """A bool table (True is visible), or a float one that is added to the logits.

    The layers of a model share one mask; what is read from it is kept while it lives.
    """
    if torch.compiler.is_compiling() or mask.is_inference():
        return read_table(mask, queries, keys, cross=cross)
    key = (id(mask), mask._version, queries, keys, cross)
    held = _known.get(key)
    if held is not None and held[0]() is mask:
        return held[1]
    sight = read_table(mask, queries, keys, cross=cross)
    if sight.table is None:  # else it would keep the mask alive
        _keep(_known, key, (weakref.ref(mask), sight))
    return sight


def _keep(kept: dict[Any, Any], key: Any, value: Any) -> None:
    """Add to what is known, at the cost of what was known first."""
    while len(kept) >= 8:
        del kept[next(iter(kept))]
    kept[key] = value


_known: dict[tuple[int, int, int, int, bool], tuple[weakref.ref[Tensor], Sight]] = {}
_triangles: dict[tuple[int, int, str, bool], Sight] = {}


def read_table(mask: Tensor, queries: int, keys: int, *, cross: bool = False) -> Sight:
    """from_table, read afresh."""
    mask = mask[(None,) * (4 - mask.dim())]
    if mask.shape[-1] > keys:  # a mask made for a longer cache
        mask = mask[..., :keys]
    # == and not `in`: under torch.compile sizes are symbols
    fits = all(
        n == 1 or n == m  # noqa: PLR1714
        for n, m in zip(mask.shape[2:], (queries, keys), strict=True)
    )
    if not fits:
        rule = f"broadcastable to [B,H,Q,K] with Q, K = {queries}, {keys}"
        raise ArgumentError("attention_mask", rule, list(mask.shape))
    if mask.is_floating_point():
        return _from_float(mask, queries, keys, cross=cross)
    table = mask if mask.dtype == torch.bool else mask != 0
    sight = _whole(table, queries, keys, mask=table, cross=cross)
    return sight if torch.compiler.is_compiling() else _as_interval(sight)


def _from_float(mask: Tensor, queries: int, keys: int, *, cross: bool) -> Sight:
    """-inf, or a number that models write instead, hides a key.

    A row that is all hidden by finite numbers keeps them: it is uniform, as the model had it.
    """
    hidden = mask <= nowhere(mask.dtype)
    if mask.numel():  # -10000 is written too, and is told from a bias by being all that is lowest
        hidden = hidden | ((mask <= FAR) & (mask == mask.amin()))
    lost = hidden.all(-1, keepdim=True)
    shown = mask.masked_fill(hidden & ~lost, -torch.inf)
    sight = _whole(~hidden, queries, keys, mask=shown, cross=cross)
    if torch.compiler.is_compiling():
        return sight
    plain = bool(((mask == 0) | hidden).all()) and not bool((lost & ~mask.isneginf()).any())
    return _as_interval(sight) if plain else sight


def nowhere(dtype: torch.dtype) -> float:
    """What stands for -inf in logits: -1e9, -1e30 and the lowest number of a type are below it."""
    return max(torch.finfo(dtype).min / 2, -1e8)


def _whole(table: Tensor, queries: int, keys: int, *, mask: Tensor, cross: bool) -> Sight:
    own = None
    if not cross:
        own = torch.arange(queries, device=table.device)
        if keys > queries:
            # a static cache is longer than what is filled: the end is the last key anyone sees
            places = torch.arange(1, keys + 1, device=table.device)
            end = (places * table.any(2).any(1).any(0)).amax()
            own = own + (end - queries).clamp(min=0)
    return Sight(queries=queries, keys=keys, mask=mask, table=table, own=own, from_model=True)


def _as_interval(sight: Sight) -> Sight:
    """The same sight by its bounds, if every row of the table is one run of keys."""
    table = sight.table
    assert table is not None
    if table.shape[-1] != sight.keys or not table.numel():
        return sight
    byte = table.byte()
    lo = byte.argmax(-1)
    hi = sight.keys - byte.flip(-1).argmax(-1)
    count = table.sum(-1)
    lo, hi = lo.masked_fill(count == 0, 0), hi.masked_fill(count == 0, 0)
    causal_here = sight.own is not None and bool((hi <= sight.own.view(1, 1, -1) + 1).all())
    if not bool((count == hi - lo).all()):
        return Sight(
            queries=sight.queries, keys=sight.keys, mask=sight.mask, table=table,
            own=sight.own, is_causal=causal_here, from_model=True,
        )  # fmt: skip
    if bool((count == sight.keys).all()):
        first = 0 if sight.keys > 1 else None
        return Sight(queries=sight.queries, keys=sight.keys, own=sight.own, choice_from=first)
    start = lo if bool((lo > 0).any()) else None
    square = start is None and sight.own is not None and hi.shape[-1] == sight.keys
    if square and torch.equal(hi, (torch.arange(sight.keys, device=hi.device) + 1).expand_as(hi)):
        return causal_from_end(sight.queries, sight.keys, device=table.device)
    return Sight(
        queries=sight.queries, keys=sight.keys, mask=_interval(start, hi), lo=start, hi=hi,
        own=sight.own, is_causal=causal_here, from_model=True,
    )  # fmt: skip


def _interval(lo: Tensor | None, hi: Tensor) -> Mask:
    def predicate(where: object) -> Tensor:
        b, h, q, k = where[:4]  # type: ignore[index]
        seen = k < _at(hi, b, h, q)
        return seen if lo is None else seen & (k >= _at(lo, b, h, q))

    return Mask(
        predicate,
        "as the model has it",
        lo=None if lo is None else lambda e: lo,
        hi=lambda e: hi,
        is_interval=True,
    )


def _at(bound: Tensor, b: Tensor, h: Tensor, q: Tensor) -> Tensor:
    at = (i if n > 1 else torch.zeros_like(i) for i, n in zip((b, h, q), bound.shape, strict=True))
    return bound[tuple(at)]


def _own(queries: int, keys: int, *, device: torch.device) -> Tensor:
    return torch.arange(queries, device=device) + (keys - queries)
