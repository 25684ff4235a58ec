"""What a mask is: a predicate on indices, an interval of keys where it is one, numbers to add.

Masks compose with `&`, `|` and `~`; `kinds` has the basic masks.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from functools import reduce
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attentropy.core.errors import ArgumentError, ArgumentTypeError
from attentropy.core.masks.extent import Extent, Where, check_broadcast, summed
from attentropy.core.masks.misuse import takes_indices


class Interval(NamedTuple):
    """Bounds of the visible keys of each row, lo <= j < hi.

    Attributes:
        lo: int64, broadcastable to [B,H,Q]; None is unbounded.
        hi: like `lo`.
    """

    lo: Tensor | None
    hi: Tensor | None


Bound = Callable[[Extent], Tensor]
Made = tuple[Callable[..., Any], tuple[Any, ...]] | str | None


@dataclass(frozen=True, eq=False)
class Mask:
    """Which keys a query may see.

    Attributes:
        predicate: True where a key is visible, elementwise on broadcast indices.
        name: for messages.
        lo: the first visible key of each row of an extent; None is 0.
        hi: one past the last visible key; None is all.
        is_interval: whether `lo` and `hi` tell everything that the predicate does.
        check: raises if the mask does not fit the extent.
        table: the bool tensor of a mask that is nothing else.
        added: numbers to add to the logits, broadcastable to [B,H,Q,K]; -inf hides a key beside
            those that the predicate hides.
        either: two intervals; every visible key lies in at least one of them. None for a mask that
            is not made of two.
        made: how to pickle it: its name in attentropy.core.masks, or the function and the arguments
            that make it.
    """

    predicate: Callable[[Where], Tensor]
    name: str
    lo: Bound | None = None
    hi: Bound | None = None
    is_interval: bool = False
    check: Callable[[Extent], None] | None = None
    table: Tensor | None = None
    added: Tensor | None = None
    either: tuple[Mask, Mask] | None = None
    made: Made = None

    @takes_indices
    def __call__(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor, *, shift: int = 0) -> Tensor:
        """Whether keys are visible; indices broadcast.

        Args:
            b: batch entries.
            h: query heads.
            q: queries; query q stands at position q + shift among the keys.
            k: keys.
            shift: number of keys before the first query.
        """
        return self.shows(Where(b, h, q, k, shift))

    def shows(self, where: Where) -> Tensor:
        """Whether keys are visible, elementwise.

        Args:
            where: indices that broadcast against each other.
        """
        seen = self.predicate(where)
        if self.added is None:
            return seen
        return seen & ~looked_up(four(self.added), where).isneginf()

    def __and__(self, other: Mask) -> Mask:
        other = as_mask(other)
        return Mask(
            lambda w: self.predicate(w) & other.predicate(w),
            f"({self.name} & {other.name})",
            lo=_meet(self.lo, other.lo, torch.maximum),
            hi=_meet(self.hi, other.hi, torch.minimum),
            is_interval=self.is_interval and other.is_interval,
            check=_both(self, other),
            added=_sum(self.added, other.added),
            either=_within(self, other) or _within(other, self),
            made=(operator.and_, (self, other)),
        )

    def __or__(self, other: Mask) -> Mask:
        other = as_mask(other)
        _refuse_added("|", self, other)
        lo, hi, is_interval = _union(self, other)
        apart = self.is_interval and other.is_interval and not is_interval
        return Mask(
            lambda w: self.predicate(w) | other.predicate(w),
            f"({self.name} | {other.name})",
            lo=lo,
            hi=hi,
            is_interval=is_interval,
            check=_both(self, other),
            either=(self, other) if apart else None,
            made=(operator.or_, (self, other)),
        )

    def __rand__(self, other: Mask) -> Mask:
        return as_mask(other) & self

    def __ror__(self, other: Mask) -> Mask:
        return as_mask(other) | self

    def __invert__(self) -> Mask:
        _refuse_added("~", self)
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
        if isinstance(self.made, str):
            return _named, (self.made,)
        return self.made or (Mask, tuple(getattr(self, field.name) for field in fields(self)))

    def __repr__(self) -> str:
        return f"Mask({self.name})"

    def fits(self, extent: Extent) -> None:
        """Raise if the mask does not fit this extent.

        Args:
            extent: sizes and device of a call.
        """
        if self.check is not None:
            self.check(extent)

    def interval(self, extent: Extent) -> Interval:
        """Bounds of the visible keys of each row; hidden keys may remain between them.

        Args:
            extent: sizes and device of a call.
        """
        return Interval(
            None if self.lo is None else self.lo(extent),
            None if self.hi is None else self.hi(extent),
        )

    def dense(self, extent: Extent) -> Tensor:
        """The whole mask, bool [B,H,Q,K]; O(n^2) memory.

        Args:
            extent: sizes and device of a call.
        """
        self.fits(extent)
        return self.shows(extent.where()).expand(extent[:4])

    def draw(self, queries: int, keys: int | None = None) -> str:
        """Rows of the mask as text: # is visible, . is hidden.

        Args:
            queries: number of rows.
            keys: number of columns; as many as rows if not given.
        """
        extent = Extent(1, 1, queries, queries if keys is None else keys, torch.device("cpu"))
        rows = self.dense(extent)[0, 0].tolist()
        return "\n".join("".join("#" if seen else "." for seen in row) for row in rows)


def _named(name: str) -> Mask:
    """A mask of attentropy.core.masks by its name."""
    mask: Mask = getattr(import_module("attentropy.core.masks"), name)
    return mask


MaskLike = Mask | Tensor | Callable[..., Tensor]
"""What attend() takes as a mask."""


def as_mask(value: object) -> Mask:
    """The mask that a value stands for.

    Args:
        value: a Mask, which is returned as it is; a bool tensor, True where a key is visible; a
            float tensor, which is added to the logits; or a function (b, h, q, k) -> bool.
    """
    if isinstance(value, Mask):
        return value
    if isinstance(value, Tensor):
        return _of_tensor(value)
    if not callable(value) or not _takes_four(value):
        rule = "a Mask, a tensor or a function of (b, h, q, k)"
        raise ArgumentTypeError("mask", rule, repr(value))
    name = getattr(value, "__name__", type(value).__name__)
    return Mask(lambda w: _bools(name, value(w.b, w.h, w.q, w.k)), name, made=(as_mask, (value,)))


def _of_tensor(x: Tensor) -> Mask:
    if x.dim() > 4:
        raise ArgumentError("mask", "of at most 4 dimensions", list(x.shape))
    if x.dtype != torch.bool and not x.is_floating_point():
        raise ArgumentTypeError("mask", "a Mask, or a bool or float tensor", x.dtype)
    kind, made = f"{list(x.shape)}", (as_mask, (x,))
    if x.dtype != torch.bool:
        return Mask(everywhere, f"added({kind})", is_interval=True, added=x, made=made)
    table = four(x)
    return Mask(
        lambda w: looked_up(table, w),
        f"dense({kind})",
        check=lambda e: check_broadcast("mask", table, e[:4]),
        table=x,
        made=made,
    )


def all_of(masks: Iterable[MaskLike | None]) -> Mask | None:
    """The keys that every one of some masks shows; numbers to add are added up.

    Args:
        masks: anything that attend() takes as a mask; None hides nothing.

    Returns:
        One mask, or None if every argument is None.
    """
    given = [as_mask(one) for one in masks if one is not None]
    return reduce(operator.and_, given) if given else None


def everywhere(where: Where) -> Tensor:
    """True for every key.

    Args:
        where: indices.
    """
    return torch.ones_like(where.k, dtype=torch.bool)


def four(x: Tensor) -> Tensor:
    """A tensor that broadcasts to [B,H,Q,K], with all four dimensions.

    Args:
        x: a tensor of at most four dimensions.
    """
    return x[(None,) * (4 - x.dim())]


def looked_up(table: Tensor, w: Where) -> Tensor:
    """The entries of a table that broadcasts to [B,H,Q,K], at some places.

    Args:
        table: a tensor with four dimensions.
        w: the places.
    """
    b, h, q, k = (
        i if n > 1 else torch.zeros_like(i) for i, n in zip(w[:4], table.shape, strict=True)
    )
    return table.to(w.k.device)[b, h, q, k]


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


def _refuse_added(sign: str, *masks: Mask) -> None:
    for mask in masks:
        if mask.added is not None:
            raise ArgumentTypeError(
                f"mask {sign}", "of masks that only show and hide keys", mask.name
            )


def _meet(
    a: Bound | None, b: Bound | None, join: Callable[[Tensor, Tensor], Tensor]
) -> Bound | None:
    if a is None or b is None:
        return b if a is None else a
    return lambda extent: join(a(extent), b(extent))


def _sum(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    if a is None or b is None:
        return b if a is None else a
    return summed(a, b)


def _within(union: Mask, interval: Mask) -> tuple[Mask, Mask] | None:
    """The two intervals of a union, each met with one more interval; None if there are none."""
    if union.either is None or not interval.is_interval:
        return None
    first, second = union.either
    return first & interval, second & interval


def _union(a: Mask, b: Mask) -> tuple[Bound | None, Bound | None, bool]:
    """Bounds of a union: an interval only if both parts start, or both end, without a bound."""
    lo = _meet(a.lo, b.lo, torch.minimum) if a.lo and b.lo else None
    hi = _meet(a.hi, b.hi, torch.maximum) if a.hi and b.hi else None
    same_side = (a.lo is None and b.lo is None) or (a.hi is None and b.hi is None)
    return lo, hi, same_side and a.is_interval and b.is_interval
