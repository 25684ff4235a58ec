"""The kinds of masks: causal, windows, prefixes, documents, padding, tables."""

from numbers import Integral

import torch
from torch import Tensor
from torch._guards import detect_fake_mode

from attentropy.core.errors import ArgumentError, ArgumentTypeError
from attentropy.core.masks.extent import Extent, Where
from attentropy.core.masks.mask import Mask, as_mask, everywhere

full = Mask(everywhere, "full", is_interval=True, made="full")
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

    Args:
        size: number of keys back, the query's own position included; at least 1.

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

    Args:
        size: number of keys ahead, the query's own position included; at least 1.

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

    Args:
        size: number of keys at the start that every query sees.

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

    Args:
        step: at least 1; 1 shows every key.

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

    Args:
        lengths: integers [B], or one for every entry: the number of keys that are not padding.

    >>> print(padding(torch.tensor([2])).draw(2, 4))
    ##..
    ##..
    """
    lengths = _integers("padding", "lengths", lengths, dims=1)

    def check(extent: Extent) -> None:
        if len(lengths) not in (1, extent.batch):
            rule = f"of shape [B] with B = {extent.batch}"
            raise ArgumentError("padding: lengths", rule, list(lengths.shape))
        if torch.compiler.is_compiling() or not len(lengths) or detect_fake_mode(lengths):
            return  # values cannot be asked for
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

    Args:
        ids: integers [K] or [B,K].

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


def between(lo: Tensor, hi: Tensor) -> Mask:
    """Show keys lo <= j < hi, by bounds for each query.

    Args:
        lo: integers, broadcastable to [B,H,Q]: the first visible key.
        hi: like `lo`: one past the last visible key. Bounds that leave nothing hide every key.

    >>> print(between(torch.tensor([0, 1, 3]), torch.tensor([2, 4, 3])).draw(3, 4))
    ##..
    .###
    ....
    """
    bounds = {"lo": lo, "hi": hi}
    low, high = (_integers("between", name, x, dims=3) for name, x in bounds.items())

    def check(extent: Extent) -> None:
        for name, x in (("lo", low), ("hi", high)):
            # == and not `in`: under torch.compile sizes are symbols
            if not all(n == 1 or n == m for n, m in zip(x.shape, extent[:3], strict=True)):  # noqa: PLR1714
                rule = f"broadcastable to [B,H,Q] = {list(extent[:3])}"
                raise ArgumentError(f"between: {name}", rule, list(x.shape))

    def predicate(w: Where) -> Tensor:
        first, last = (
            x.to(w.k.device)[w.b % x.shape[0], w.h % x.shape[1], w.q % x.shape[2]]
            for x in (low, high)
        )
        return (first <= w.k) & (w.k < last)

    return Mask(
        predicate,
        f"between({list(low.shape)})",
        lo=lambda e: low.to(e.device),
        hi=lambda e: high.to(e.device),
        is_interval=True,
        check=check,
        made=(between, (low, high)),
    )


def dense(visible: Tensor) -> Mask:
    """A bool tensor that broadcasts to [B,H,Q,K]; True is visible.

    Args:
        visible: at most 4 dimensions.

    >>> print(dense(torch.tensor([[True, False], [True, True]])).draw(2))
    #.
    ##
    """
    if not isinstance(visible, Tensor) or visible.dtype != torch.bool:
        kind = visible.dtype if isinstance(visible, Tensor) else type(visible).__name__
        raise ArgumentTypeError("dense: visible", "a bool tensor", kind)
    return as_mask(visible)


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
