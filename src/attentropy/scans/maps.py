"""Small attention maps of the beginning of the text, pooled, to bytes."""

import base64
import zlib

import torch
from torch import Tensor


def pack(weights: Tensor) -> tuple[str, float]:
    """[side, side] weights as base64 of compressed bytes, and the largest weight."""
    peak = float(weights.max())
    scaled = (weights / peak).clamp(0, 1).sqrt() if peak > 0 else torch.zeros_like(weights)
    data = (255 * scaled).round().to(torch.uint8).cpu().numpy().tobytes()
    return base64.b64encode(zlib.compress(data, 9)).decode(), peak


def pool(weights: Tensor, side: int) -> Tensor:
    """The mean weight of every block, [..., n, n] -> [..., side, side]; side divides n."""
    block = weights.shape[-1] // side
    return weights.unflatten(-1, (side, block)).mean(-1).unflatten(-2, (side, block)).mean(-2)


def side_for(heads: int) -> int:
    """The largest map that a page of so many heads has room for."""
    return next((side for side in (256, 128, 64, 32) if heads * side * side <= 1_300_000), 16)


def draw_maps(model, tokens, found, *, label):
    return None
