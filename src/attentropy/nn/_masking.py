"""Masks as torch.nn writes them.

Here True means visible. In `attn_mask` and `key_padding_mask` of torch.nn.MultiheadAttention True
means hidden; they keep that meaning under these two names, and only there.
"""

import torch
from torch import Tensor

from attentropy.core.errors import ArgumentError, ArgumentTypeError
from attentropy.core.masks.mask import MaskLike, as_mask


def check_mask(mask: MaskLike | None) -> None:
    """Raise unless it is a mask of attend(), or none."""
    if mask is not None:
        as_mask(mask)


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
