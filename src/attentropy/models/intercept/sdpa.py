"""Models that call torch's scaled_dot_product_attention, nn.MultiheadAttention among them.

The attribute `torch.nn.functional.scaled_dot_product_attention` is replaced while anything is
watched or steered; a call is taken over if the innermost running module is, and passed on
otherwise. Its is_causal is aligned to the start: query i sees keys up to i, whatever K is.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attentropy.core.masks import Extent
from attentropy.core.resolve import FLOATS, Options
from attentropy.models.intercept import registry, tracking
from attentropy.models.intercept.compute import (
    ModelInputs,
    answer,
    attending,
    is_cross,
    pass_by,
)
from attentropy.models.intercept.tracking import STATE
from attentropy.models.record.model_masks import (
    ModelMask,
    causal_from_end,
    causal_from_start,
    everything,
    from_table,
)

UNUSABLE = "scaled_dot_product_attention of tensors that attend() does not take"


def hold() -> registry.Undo:
    """Take over calls by tracked modules, until the function returned is called."""
    return registry.hold("F.scaled_dot_product_attention", _apply)


def _apply() -> registry.Undo:
    taken = _taken_over(F.scaled_dot_product_attention)
    put_back = registry.replace(F, "scaled_dot_product_attention", taken)
    # the fast path of MultiheadAttention and TransformerEncoder calls no Python
    allow = partial(
        torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled()
    )
    torch.backends.mha.set_fastpath_enabled(False)
    return registry.together(put_back, allow)


@contextmanager
def passing() -> Iterator[None]:
    """Calls inside are passed on to torch."""
    before, STATE.passing = STATE.passing, True
    try:
        yield
    finally:
        STATE.passing = before


def _taken_over(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def scaled_dot_product_attention(
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
            return original(
                query, key, value, attn_mask, dropout_p, is_causal,
                scale=scale, enable_gqa=enable_gqa, **more,
            )  # fmt: skip

        module = None if STATE.passing else attending()
        if module is None or not _is_touched(module):
            return plain()
        q, k, v = (_four(x) for x in (query, key, value))
        if more or not _usable(query, key, value) or not _fitting(q, k, v):
            pass_by(module, UNUSABLE)
            return plain()
        mask = _mask(module, q, k, _four_mask(attn_mask, query), is_causal=is_causal)
        scale = q.shape[3] ** -0.5 if scale is None else scale
        given = ModelInputs(q, k, v, Options(scale=scale, dropout=dropout_p), mask)
        out, _ = answer(module, given, plain=lambda: _four(plain()))
        return out.reshape(*query.shape[:-1], value.shape[-1])

    return scaled_dot_product_attention


def _is_touched(module: nn.Module) -> bool:
    """Watched or steered?"""
    attached = tracking.tracked(module)
    if attached is None:
        return False
    return attached.owner is not None or bool(attached.changes) or attached.ring is not None


def _usable(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Plain dense tensors that agree in their leading sizes, heads apart."""
    if query.dim() < 2 or query.dtype not in FLOATS or query.is_nested:
        return False
    same = query.dtype == key.dtype == value.dtype and key.dim() == query.dim() == value.dim()
    return same and query.shape[:-3] == key.shape[:-3] == value.shape[:-3] and key.shape[-2] > 0


def _fitting(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Heads of queries come in groups of one size for each head of keys."""
    return q.shape[1] % k.shape[1] == 0 and k.shape[1] == v.shape[1]


def _four(x: Tensor) -> Tensor:
    """[..., N, D] as [B,H,N,D]; without a dimension for heads there is one head."""
    if x.dim() == 4:
        return x
    if x.dim() < 4:
        return x[None, None] if x.dim() == 2 else x[:, None]
    return x.flatten(0, -4)


def _mask(
    module: nn.Module, q: Tensor, k: Tensor, mask: Tensor | None, *, is_causal: bool
) -> ModelMask:
    extent = Extent(q.shape[0], q.shape[1], q.shape[2], k.shape[2], q.device)
    if mask is not None:
        return from_table(mask, extent, cross=is_cross(module))
    if not is_causal:
        return everything(extent, cross=is_cross(module))
    return (causal_from_end if extent.queries == extent.keys else causal_from_start)(extent)


def _four_mask(mask: Tensor | None, query: Tensor) -> Tensor | None:
    """A mask that broadcasts to [..., Q, K], for queries flattened to four dimensions."""
    if mask is None or query.dim() == 4 or mask.dim() < 3:
        return mask
    if query.dim() == 3:
        return mask[:, None]
    return mask.expand(*query.shape[:-2], *mask.shape[-2:]).flatten(0, -4)
