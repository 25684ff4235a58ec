"""Several masks at once, and masks as torch.nn writes them.

Here True means visible. In `attn_mask` and `key_padding_mask` of torch.nn.MultiheadAttention True
means hidden; they keep that meaning under these two names, and only there.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from attentropy.core.errors import ArgumentError, ArgumentTypeError
from attentropy.core.masks import Extent, Mask, as_mask, full
from attentropy.core.scores import ALiBi, Relative

MaskLike = Mask | Tensor | Callable[..., Tensor]


class Visible(NamedTuple):
    """The `mask` and the `bias` of attend()."""

    mask: Mask | Tensor | None
    bias: Tensor | Relative | ALiBi | None


def combined(
    parts: Iterable[MaskLike | None], bias: Tensor | Relative | ALiBi | None, extent: Extent
) -> Visible:
    """All masks together: what one hides is hidden, float masks add up."""
    seen, added = _sorted(parts)
    if added is None:
        return Visible(seen, bias)
    if bias is None:
        return Visible(seen, added)
    if seen is not None:
        added = added.masked_fill(~seen.dense(extent), -torch.inf)
    return Visible(added, bias)


def check_mask(mask: MaskLike | None) -> None:
    """Raise unless it is a mask of attend(), or none."""
    if mask is not None and not (isinstance(mask, Tensor) and mask.is_floating_point()):
        as_mask(mask)


def _sorted(parts: Iterable[MaskLike | None]) -> tuple[Mask | None, Tensor | None]:
    seen: Mask | None = None
    added: Tensor | None = None
    for part in parts:
        if part is None or part is full:
            continue
        if isinstance(part, Tensor) and part.is_floating_point():
            added = part if added is None else added + part
        else:
            mask = as_mask(part)
            seen = mask if seen is None else seen & mask
    return seen, added


def from_attn_mask(mask: Tensor | None, heads: int) -> Tensor | None:
    """Torch's attn_mask [Q,K] or [B*H,Q,K], True hidden or added, as a mask of this library."""
    if mask is None:
        return None
    if mask.dim() not in (2, 3):
        rule = "of shape [Q,K] or [B*H,Q,K]; masks of this library go to mask="
        raise ArgumentError("attn_mask", rule, list(mask.shape))
    if mask.dim() == 3:
        if mask.shape[0] % heads:
            raise ArgumentError("attn_mask", f"[B*H,Q,K] with H = {heads}", list(mask.shape))
        mask = mask.unflatten(0, (-1, heads))
    return _shown("attn_mask", mask)


def from_padding(mask: Tensor | None) -> Tensor | None:
    """Torch's key_padding_mask [B,K], True hidden or added, as a mask of this library."""
    if mask is None:
        return None
    if mask.dim() != 2:
        raise ArgumentError("key_padding_mask", "of shape [B,K]", list(mask.shape))
    return _shown("key_padding_mask", mask)[:, None, None]


def _shown(name: str, mask: Tensor) -> Tensor:
    if mask.dtype == torch.bool:
        return ~mask
    if not mask.is_floating_point():
        raise ArgumentTypeError(f"{name}.dtype", "bool (True hides) or floating point", mask.dtype)
    return mask
