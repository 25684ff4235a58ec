"""The arguments of the running modules: they show padding, and where keys come from.

The caller says what is padding: an `attention_mask` [B,N], 0 at padding, or a `key_padding_mask`
[B,N] as torch.nn has it, True at padding. An `attention_mask` of a layer without positive numbers
is added to logits, and says nothing about padding. Where no argument marks padding, all rows count.
"""

from functools import cache
from inspect import signature
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from attentropy.kernels.tracing import traced
from attentropy.models.intercept.census import is_apart
from attentropy.models.intercept.tracking import STATE, owner_of

if TYPE_CHECKING:
    from attentropy.models.record.accumulators import Owner

PADDED = ("key_padding_mask", "src_key_padding_mask", "tgt_key_padding_mask")
TELLING = (*PADDED, "attention_mask")
ELSEWHERE = (
    "encoder_hidden_states",
    "key_value_states",
    "cross_attention_states",
    "memory",
    "context",
)
NEAR = 3  # the innermost modules that are asked where keys come from


@cache
def names_of(kind: Any) -> dict[str, int]:
    """Names of the arguments that modules of a class take, with their places.

    Args:
        kind: the class of the modules.
    """
    try:
        names = list(signature(kind.forward).parameters)
    except (TypeError, ValueError):
        return {}
    names = names[1:] if names[:1] == ["self"] else names
    return {name: place for place, name in enumerate(names)}


def argument(owner: "Owner", name: str) -> Any:
    """An argument of the running call of a module; None if it is not given.

    Args:
        owner: the record of the module.
        name: of the argument.
    """
    args, kwargs = owner.given
    value = kwargs.get(name)
    if value is None and args:
        place = owner.names.get(name)
        value = args[place] if place is not None and place < len(args) else None
    return value


def real_queries(batch: int, queries: int, *, cross: bool, step: bool) -> Tensor | None:
    """Queries that are not padding, bool [B,1,Q]; None if all count.

    Args:
        batch: number of sequences.
        queries: number of queries of each.
        cross: the keys come from elsewhere.
        step: the queries continue a cache, so they are the last of the sequence.
    """
    for module in reversed(STATE.running):
        owner = owner_of(module)
        if owner is None or not owner.padding:
            continue
        if not (cross and isinstance(module, nn.MultiheadAttention)):
            mask = _padding_mask(owner)
            told, real = (
                (False, None) if mask is None else _real(owner, *mask, batch, queries, step)
            )
            if told:
                return real
        if owner.is_model and argument(owner, "attention_mask") is None:
            return None  # what is around it speaks of other tokens
    return None


def _padding_mask(owner: "Owner") -> tuple[str, Tensor] | None:
    """The mask [B,N] that can show one module which tokens are padding, and its name."""
    args, kwargs = owner.given
    for name in owner.padding:
        mask = argument(owner, name) if args else kwargs.get(name)
        if isinstance(mask, Tensor) and mask.dim() == 2:
            return name, mask
    return None


def _real(
    owner: "Owner", name: str, mask: Tensor, batch: int, queries: int, step: bool
) -> tuple[bool, Tensor | None]:
    """Whether a mask shows padding, and the queries that are not; found once for all layers."""
    sizes = batch, queries, step
    compiling = torch.compiler.is_compiling()
    if not compiling and sizes in owner.real:
        known: tuple[bool, Tensor | None] = owner.real[sizes]
        return known
    real = _tokens(owner, name, mask)
    fitted = None if real is None else _fitted(real, batch, queries, step=step)
    if fitted is not None and _is_all(fitted):
        fitted = None
    if not compiling:
        owner.real[sizes] = real is not None, fitted
    return real is not None, fitted


def _tokens(owner: "Owner", name: str, mask: Tensor) -> Tensor | None:
    """Tokens [B,N] that are not padding; None if the mask does not show them."""
    if name in PADDED:
        return ~mask if mask.dtype == torch.bool else mask == 0
    return None if not owner.is_model and _is_added(mask) else mask != 0


def _is_all(real: Tensor) -> bool:
    """Is nothing padding? Where asking takes no more than a look: on the CPU."""
    if not real.is_cpu or traced(real) or torch._C._are_functorch_transforms_active():
        return False
    return bool(real.all())


def _is_added(mask: Tensor) -> bool:
    """Is it made to be added to logits?"""
    if torch.compiler.is_compiling() or not mask.is_floating_point():
        return False
    return not bool((mask > 0).any())


def _fitted(real: Tensor, batch: int, queries: int, *, step: bool) -> Tensor | None:
    rows, tokens = real.shape
    if rows != batch or tokens < queries or (tokens > queries and not step):
        return None
    return real[:, None, tokens - queries :]


def from_elsewhere(queries: int, keys: int) -> bool | None:
    """Are keys computed from another input than queries? None if the arguments do not show it.

    Args:
        queries: number of queries.
        keys: number of keys.
    """
    if torch.compiler.is_compiling():  # what is given to other modules may be of any kind
        own = STATE.running[-1] if STATE.running else None
        owner = owner_of(own)
        if owner is None or not isinstance(own, nn.MultiheadAttention):
            return None
        return _told(owner, own, queries, keys)
    for module in reversed(STATE.running[-NEAR:]):
        owner = owner_of(module)
        told = None if owner is None else _told(owner, module, queries, keys)
        if told is not None:
            return told
    return None


def _told(owner: "Owner", module: nn.Module, queries: int, keys: int) -> bool | None:
    if isinstance(module, nn.MultiheadAttention):
        key = argument(owner, "key")
        return key is not None and not _is_same(key, argument(owner, "query"))
    given = [x for x in _tensors(owner) if _is_sequence(x)]
    if queries == keys and len(given) == 1 and given[0].shape[1] == keys:
        return False  # there is no other input
    if queries != keys and [x.shape[-2] for x in _both(owner)] == [queries, keys]:
        return True
    for name in ELSEWHERE:
        other = argument(owner, name)
        if _is_sequence(other) and other is not given[0] and other.shape[1] == keys:
            return True
    lengths = [x.shape[1] for x in given]
    if queries not in lengths:
        return None
    if queries == keys:
        return bool(is_apart(module))
    lengths.remove(queries)
    # keys of another length are those of another input, or of both inputs side by side
    return keys in lengths or keys - queries in lengths


def _is_same(x: Any, y: Any) -> bool:
    """One tensor, or two views of the same numbers, as of an input that is transposed twice."""
    if x is y or torch.compiler.is_compiling() or not (type(x) is type(y) is Tensor):
        return x is y
    if x.shape != y.shape or x.stride() != y.stride():
        return False
    return x.untyped_storage()._cdata == y.untyped_storage()._cdata and (
        x.storage_offset() == y.storage_offset()
    )


def own_lengths() -> set[int]:
    """Lengths of the sequences that the innermost running module was given."""
    owner = owner_of(STATE.running[-1]) if STATE.running else None
    return set() if owner is None else {x.shape[1] for x in _tensors(owner) if _is_sequence(x)}


def in_windows(batch: int, queries: int) -> bool:
    """Does the running call attend within parts of a sequence that a module around it was given?

    Such parts stand side by side in the batch.

    Args:
        batch: number of sequences of the call.
        queries: number of queries of each.
    """
    if torch.compiler.is_compiling() or not STATE.running:
        return False
    outer = owner_of(STATE.running[0])
    if outer is None or _batch(outer) in (None, batch):
        return False
    owners = (owner_of(module) for module in STATE.running)
    return any(_is_whole(x, batch, queries) for one in owners if one for x in _tensors(one))


def _batch(owner: "Owner") -> int | None:
    args, kwargs = owner.given
    for x in (*args, *kwargs.values()):
        if isinstance(x, Tensor) and x.dim():
            return x.shape[0]
    return None


def _tensors(owner: "Owner") -> list[Tensor]:
    args, kwargs = owner.given
    return [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)]


def _is_whole(x: Tensor, batch: int, queries: int) -> bool:
    """Is it a sequence [b,N,C], [b,H,W,C] or [b,C,H,W] whose parts make up the batch?"""
    if x.dim() not in (3, 4) or not x.is_floating_point() or batch <= x.shape[0]:
        return False
    parts, rest = divmod(batch, max(1, x.shape[0]))
    lengths = [x.shape[1:-1].numel(), x.shape[2:].numel() if x.dim() == 4 else 0]
    # parts at the edge may be padded
    return not rest and any(queries < n <= parts * queries < 4 * n for n in lengths)


def _both(owner: "Owner") -> list[Tensor]:
    """What a module was given as `query` and `key`."""
    given = [argument(owner, name) for name in ("query", "key")]
    return [x for x in given if isinstance(x, Tensor) and x.dim() > 2]


def _is_sequence(x: Any) -> bool:
    return isinstance(x, Tensor) and x.dim() == 3 and x.is_floating_point()
