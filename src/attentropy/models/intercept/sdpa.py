"""Models that call torch's scaled_dot_product_attention, nn.MultiheadAttention among them.

The attribute `torch.nn.functional.scaled_dot_product_attention` is replaced while anything is
watched or steered; a call is taken over if the innermost running module is, and passed on
otherwise. Its is_causal is aligned to the start: query i sees keys up to i, whatever K is.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attentropy.models.intercept import attend_steered, running
from attentropy.models.intercept.compute import is_touched, pass_by, run
from attentropy.models.intercept.running import Working
from attentropy.models.record.accumulators import owner_of
from attentropy.models.record.model_call import Asked
from attentropy.models.record.visibility import (
    Sight,
    causal_from_end,
    causal_from_start,
    everything,
    from_table,
)

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
UNUSABLE = "scaled_dot_product_attention of tensors that attend() does not take"


class _Patch:
    """The original function and settings, while users of the patch remain."""

    users = 0
    original: Callable[..., Tensor] = staticmethod(F.scaled_dot_product_attention)
    fast_path = True


def install() -> None:
    """One more user of the patch."""
    if not _Patch.users:
        _Patch.original = staticmethod(F.scaled_dot_product_attention)
        _Patch.fast_path = torch.backends.mha.get_fastpath_enabled()
        F.scaled_dot_product_attention = _attention
        # the fast path of MultiheadAttention and TransformerEncoder calls no Python
        torch.backends.mha.set_fastpath_enabled(False)
    _Patch.users += 1


def uninstall() -> None:
    """One user less; the last one puts everything back."""
    _Patch.users -= 1
    if not _Patch.users:
        F.scaled_dot_product_attention = _Patch.original
        torch.backends.mha.set_fastpath_enabled(_Patch.fast_path)


@contextmanager
def passing() -> Iterator[None]:
    """Calls inside are passed on to torch."""
    before, Working.passing = Working.passing, True
    try:
        yield
    finally:
        Working.passing = before


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    **more: Any,
) -> Tensor:
    def plain() -> Tensor:
        return _Patch.original(
            query, key, value, attn_mask, dropout_p, is_causal,
            scale=scale, enable_gqa=enable_gqa, **more,
        )  # fmt: skip

    module = None if Working.passing else attend_steered.current()
    if module is None or not is_touched(module):
        return plain()
    if more or not _usable(query, key, value):
        pass_by(module, UNUSABLE)
        return plain()
    q, k, v = (_four(x) for x in (query, key, value))
    if q.shape[1] % k.shape[1] or k.shape[1] != v.shape[1]:
        pass_by(module, UNUSABLE)
        return plain()
    asked = Asked(
        q=q,
        k=k,
        v=v,
        sight=_sight(module, q, k, _four_mask(attn_mask, query), is_causal=is_causal),
        scale=q.shape[3] ** -0.5 if scale is None else scale,
        dropout=dropout_p,
    )
    out = run(module, asked, plain=lambda: _four(plain()))
    return out.reshape(*query.shape[:-1], value.shape[-1])


def _usable(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Plain dense tensors that agree in their leading sizes, heads apart."""
    if query.dim() < 2 or query.dtype not in _FLOATS or query.is_nested:
        return False
    same = query.dtype == key.dtype == value.dtype and key.dim() == query.dim() == value.dim()
    return same and query.shape[:-3] == key.shape[:-3] == value.shape[:-3] and key.shape[-2] > 0


def _four(x: Tensor) -> Tensor:
    """[..., N, D] as [B,H,N,D]; without a dimension for heads there is one head."""
    if x.dim() == 4:
        return x
    if x.dim() < 4:
        return x[None, None] if x.dim() == 2 else x[:, None]
    return x.flatten(0, -4)


def _sight(
    module: torch.nn.Module, q: Tensor, k: Tensor, mask: Tensor | None, *, is_causal: bool
) -> Sight:
    queries, keys = q.shape[2], k.shape[2]
    owner = owner_of(module)
    cross = running.looks_like_cross("", module) if owner is None else owner.kind == "cross"
    if mask is not None:
        return from_table(mask, queries, keys, cross=cross)
    if not is_causal:
        return everything(queries, keys, device=q.device, cross=cross)
    make = causal_from_end if queries == keys else causal_from_start
    return make(queries, keys, device=q.device)


def _four_mask(mask: Tensor | None, query: Tensor) -> Tensor | None:
    """A mask that broadcasts to [..., Q, K], for queries flattened to four dimensions."""
    if mask is None or query.dim() == 4 or mask.dim() < 3:
        return mask
    if query.dim() == 3:
        return mask[:, None]
    return mask.expand(*query.shape[:-2], *mask.shape[-2:]).flatten(0, -4)
