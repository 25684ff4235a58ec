"""The mask of a model, in whatever form it has, read as a Visibility.

A model hands over a flag, a bool table, or a float table with a low number in place of -inf. A
mask becomes an interval of keys per query wherever it is one, so that nothing of size n x n is done
twice.

One rule decides which keys a float table hides, whether by -inf, the lowest number of a type,
-1e10, -10000 or -100: keys whose number is at least 90 below the largest number of the row. Their
weight is below e^-90 of the largest, unless the scores themselves differ as much. Such keys do not
count as visible. The computation keeps the numbers of the model, except those of 9000 and more
below, which become -inf. A row whose numbers are all below -90 sees nothing: the model's own result
for it is kept, and it does not count. At a softmax by hand only logits are known, and scores may be
low as well: there a row sees nothing if all its logits are below -9000.
"""

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from attentropy.core.call import Call
from attentropy.core.errors import ArgumentError
from attentropy.core.masks import Extent
from attentropy.core.visibility import Visibility
from attentropy.kernels.tracing import traced

HIDDEN = 90.0  # below the largest number of a row
FAR = 9000.0
KEPT = 8  # masks whose reading is kept for the next layer


@dataclass(frozen=True, eq=False, kw_only=True)
class ModelMask:
    """Which keys the queries of a model see, and what else is known about the queries.

    Attributes:
        seen: which keys each query sees, as attend() takes it.
        positions: the place of each query among the keys, int64 [Q]; None if they have none, as in
            cross-attention.
        cross: the keys come from elsewhere.
        is_causal: no query sees a key after its own; a bool tensor [] in a compiled graph.
        blind: queries from which finite numbers hide all keys, broadcastable to [B,H,Q].
        first: the first key that any query of an entry sees, [1 or B,1,1]; None if it is key 0.
        choice_from: the query from which on all see two keys or more; None if it is not known.
        step: the queries continue a cache.
        slides: keys leave the sight of later queries at a fixed distance, as in a sliding window.
        notes: what was computed from this mask, for the next layer.
    """

    seen: Visibility
    positions: Tensor | None = None
    cross: bool = False
    is_causal: bool | Tensor = False
    blind: Tensor | None = None
    first: Tensor | None = None
    choice_from: int | None = None
    step: bool = False
    slides: bool = False
    notes: dict[Any, Any] = field(default_factory=dict)

    def seeing(self, seen: Visibility) -> "ModelMask":
        """The same queries where they see other keys.

        Args:
            seen: which keys they see.
        """
        first = _first(seen._replace(added=None))
        return replace(self, seen=seen, first=first, choice_from=None, notes={})


def everything(extent: Extent, *, cross: bool = False) -> ModelMask:
    """Every query sees every key.

    Args:
        extent: sizes and device of the call.
        cross: the keys come from elsewhere.
    """

    def make() -> ModelMask:
        return ModelMask(
            seen=Visibility(extent, shape="full").with_visible(),
            positions=None if cross else _from_end(extent),
            cross=cross,
            is_causal=extent.queries == 1 and not cross,
            choice_from=0 if extent.keys > 1 else None,
            step=not cross and extent.queries < extent.keys,
        )

    return _shared(("everything", cross), extent, make)


def causal_from_end(extent: Extent) -> ModelMask:
    """Query i sees keys up to i + K - Q, as a KV cache needs.

    Args:
        extent: sizes and device of the call.
    """

    def make() -> ModelMask:
        positions = _from_end(extent)
        hi = (positions + 1).clamp(0, extent.keys).to(torch.int32).view(1, 1, -1)
        alone = max(0, 1 - extent.keys + extent.queries)
        return ModelMask(
            seen=Visibility(extent, hi=hi, shape="causal").with_visible(),
            positions=positions,
            is_causal=True,
            choice_from=alone if alone < extent.queries else None,
            step=extent.queries < extent.keys,
        )

    return _shared(("from the end",), extent, make)


def causal_from_start(extent: Extent) -> ModelMask:
    """Query i sees keys up to i, as is_causal of scaled_dot_product_attention has it.

    Args:
        extent: sizes and device of the call.
    """

    def make() -> ModelMask:
        positions = torch.arange(extent.queries, device=extent.device)
        hi = (positions + 1).clamp(max=extent.keys).to(torch.int32).view(1, 1, -1)
        seen = Visibility(extent, hi=hi).with_visible()
        return ModelMask(seen=seen, positions=positions, is_causal=True)

    return _shared(("from the start",), extent, make)


def from_call(call: Call, *, cross: bool) -> ModelMask:
    """The mask of a call of attend().

    Args:
        call: the resolved call.
        cross: the keys come from elsewhere.
    """
    seen = call.seen._replace(added=None)
    by_table = seen.table is not None or seen.predicate is not None
    seen = seen.tabled() if by_table else seen
    own, first = None if cross else _from_end(seen.extent), _first(seen)
    return ModelMask(
        seen=seen,
        positions=own,
        cross=cross,
        is_causal=seen.shape == "causal",
        first=first,
        step=not cross and seen.extent.queries < seen.extent.keys,
        slides=not torch.compiler.is_compiling() and _slides(seen, own, first),
    )


def from_table(mask: Tensor, extent: Extent, *, cross: bool = False) -> ModelMask:
    """A bool table (True is visible), or a float one that is added to the logits.

    The layers of a model share one mask; what is read from it is kept while it lives.

    Args:
        mask: broadcastable to [B,H,Q,K], or to more keys where a cache is longer.
        extent: sizes and device of the call.
        cross: the keys come from elsewhere.
    """
    if traced(mask) or mask.is_inference():
        return read_table(mask, extent, cross=cross)
    key = (id(mask), mask._version, extent[:4], cross)
    held = _known.get(key)
    if held is not None and held[0]() is mask:
        return held[1]
    read = read_table(mask, extent, cross=cross)
    if read.seen.table is None and read.seen.added is None:  # else it would keep the mask alive
        _keep(_known, key, (weakref.ref(mask), read))
    return read


def read_table(mask: Tensor, extent: Extent, *, cross: bool = False) -> ModelMask:
    """from_table() without the stored results of earlier calls.

    Args:
        mask: broadcastable to [B,H,Q,K], or to more keys where a cache is longer.
        extent: sizes and device of the call.
        cross: the keys come from elsewhere.
    """
    queries, keys = extent[2:4]
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
        return _from_float(mask, extent, cross=cross)
    table = mask if mask.dtype == torch.bool else mask != 0
    return _from_bool(table, extent, cross=cross)


def hidden_keys(logits: Tensor) -> Tensor:
    """Keys that count as hidden: 90 or more below the largest number of their row, or at -inf.

    Args:
        logits: [...,K], or what a model adds to them.
    """
    return _below(logits, HIDDEN)


def _below(x: Tensor, gap: float) -> Tensor:
    """Numbers so far below the largest of their row, or at -inf; not those that are the largest."""
    top = x.amax(-1, keepdim=True)
    return ((x <= top - gap) & (x < top)) | x.isneginf()


def _from_float(mask: Tensor, extent: Extent, *, cross: bool) -> ModelMask:
    """A table that is added to the logits."""
    if not mask.numel():
        return _from_bool(~mask.isneginf(), extent, cross=cross)
    if mask.shape[-1] == 1:  # one number for all keys of a row
        mask = mask.expand(*mask.shape[:-1], extent.keys)
    top = mask.amax(-1, keepdim=True)
    hidden, far = hidden_keys(mask), _below(mask, FAR)
    if not torch.compiler.is_compiling():
        lowered = (top < -HIDDEN) & ~top.isneginf()
        if bool(((mask == 0) | far).all()) and not bool(lowered.any()):
            return _from_bool(~far, extent, cross=cross)
    told = _whole(~hidden & (top >= -HIDDEN), extent, cross=cross)
    shown = mask.masked_fill(far, -torch.inf)
    seen = Visibility(extent, added=shown, counted=(~hidden).sum(-1))
    return replace(told, seen=seen, blind=top[..., 0] < -HIDDEN)


def _from_bool(table: Tensor, extent: Extent, *, cross: bool) -> ModelMask:
    whole = _whole(table, extent, cross=cross)
    return whole if torch.compiler.is_compiling() else _as_interval(whole)


def _whole(table: Tensor, extent: Extent, *, cross: bool) -> ModelMask:
    """What a table tells, whatever its form."""
    seen = Visibility(extent, table=table)
    positions = None if cross else _positions(table, extent)
    mask = ModelMask(
        seen=seen,
        positions=positions,
        cross=cross,
        first=_first(seen),
        step=_step(positions, extent),
    )
    if positions is None:
        return mask
    causal = _looks_back(table, positions, extent)
    return replace(mask, is_causal=causal if torch.compiler.is_compiling() else bool(causal))


def _positions(table: Tensor, extent: Extent) -> Tensor:
    own = torch.arange(extent.queries, device=table.device)
    if extent.keys <= extent.queries:
        return own
    # a static cache is longer than what is filled: the end is the last key anyone sees
    places = torch.arange(1, extent.keys + 1, device=table.device)
    end = (places * table.any(2).any(1).any(0)).amax()
    return own + (end - extent.queries).clamp(min=0)


def _step(positions: Tensor | None, extent: Extent) -> bool:
    """At the start of a static cache, longer than what is filled, nothing is continued."""
    if positions is None or extent.queries >= extent.keys:
        return False
    return torch.compiler.is_compiling() or int(positions[0]) > 0


def _looks_back(table: Tensor, positions: Tensor, extent: Extent) -> Tensor:
    key = torch.arange(extent.keys, device=table.device)
    return ~(table & (key > positions[:, None])).any()


def _as_interval(mask: ModelMask) -> ModelMask:
    """The same by bounds, if every row of the table is one run of keys."""
    table, extent = mask.seen.table, mask.seen.extent
    assert table is not None
    if table.shape[-1] != extent.keys or not table.numel():
        return replace(mask, seen=mask.seen.with_visible())
    byte = table.byte()
    count = table.sum(-1)
    lo = byte.argmax(-1).masked_fill(count == 0, 0)
    hi = (extent.keys - byte.flip(-1).argmax(-1)).masked_fill(count == 0, 0)
    own = mask.positions
    causal = own is not None and bool((hi <= own.view(1, 1, -1) + 1).all())
    if not bool((count == hi - lo).all()):
        return replace(mask, seen=mask.seen._replace(counted=count), is_causal=causal)
    if bool((count == extent.keys).all()):
        return everything(extent, cross=mask.cross)
    start = lo if bool((lo > 0).any()) else None
    square = start is None and own is not None and hi.shape[-1] == extent.keys
    if square and torch.equal(hi, (torch.arange(extent.keys, device=hi.device) + 1).expand_as(hi)):
        return causal_from_end(extent)
    first = None if start is None else start.to(torch.int32)
    seen = Visibility(extent, first, hi.to(torch.int32), counted=count)
    return replace(mask, seen=seen, is_causal=causal, slides=_slides(seen, own, mask.first))


def _slides(seen: Visibility, own: Tensor | None, first: Tensor | None) -> bool:
    """Does each query that misses the first keys see back as far as any query does?

    Documents begin anew instead: their first queries see few keys.
    """
    if own is None or seen.lo is None or not seen.is_interval:
        return False
    sees = seen.lo < (seen.extent.keys if seen.hi is None else seen.hi)
    behind = (own - seen.lo).masked_fill(~sees, -1)
    later = sees & (seen.lo > (0 if first is None else first))
    return bool(later.any()) and bool((behind[later] == behind.amax()).all())


def _first(seen: Visibility) -> Tensor | None:
    """The first key that any query of an entry sees, [B,1,1]; None if it is key 0 for certain."""
    if not seen.is_interval:
        return seen.sees().any(2).any(1).int().argmax(-1).view(-1, 1, 1)
    if seen.lo is None:
        return None
    last = seen.extent.keys if seen.hi is None else seen.hi
    return seen.lo.masked_fill(seen.lo >= last, seen.extent.keys).amin((1, 2)).view(-1, 1, 1).long()


def _from_end(extent: Extent) -> Tensor:
    return torch.arange(extent.queries, device=extent.device) + (extent.keys - extent.queries)


def _shared(name: Any, extent: Extent, make: Callable[[], ModelMask]) -> ModelMask:
    """What depends on sizes alone, made once for all layers."""
    if traced():
        return make()
    key = (name, extent, torch.is_inference_mode_enabled())
    held = _plain.get(key)
    if held is None:
        held = make()
        _keep(_plain, key, held)
    return held


def _keep(kept: dict[Any, Any], key: Any, value: Any) -> None:
    """Add to what is known, at the cost of what was known first."""
    with _LOCK:
        while len(kept) >= KEPT:
            del kept[next(iter(kept))]
        kept[key] = value


_LOCK = threading.Lock()
_known: dict[Any, tuple[weakref.ref[Tensor], ModelMask]] = {}
_plain: dict[Any, ModelMask] = {}
