"""Random numbers that depend on (seed, b, h, q, k) only, not on how the work is tiled.

A forward pass, its recomputation and the dense reference so draw the same dropout and the same
noise. The mixer is the 32-bit avalanche x ^= x>>16; x *= 0x7feb352d; x ^= x>>15; x *= 0x846ca68b;
x ^= x>>16, carried in int64.
"""

import torch
from torch import Tensor

from attentropy.masks import Where

_LOW = 0xFFFFFFFF


def uniform(seed: int, where: Where, *, dtype: torch.dtype) -> Tensor:
    """Uniform numbers in (0, 1), one for each index of the broadcast shape."""
    key = _mix(where.b + (seed & _LOW))
    key = _mix(where.h + key + (seed >> 32 & _LOW))
    key = _mix(where.q + key)
    bits = _mix(_mix(where.k) ^ key)
    # 23 bits, centred in their cell: exact in float32 and never 0 or 1
    return (bits >> 9).to(dtype).add_(0.5).mul_(2.0**-23)


def gumbel(seed: int, where: Where, *, dtype: torch.dtype) -> Tensor:
    """Standard Gumbel noise, -log(-log u)."""
    return uniform(seed, where, dtype=dtype).log_().neg_().log_().neg_()


def kept(seed: int, where: Where, *, rate: float, dtype: torch.dtype) -> Tensor:
    """Dropout factors: 0 with probability `rate`, else 1 / (1 - rate)."""
    return (uniform(seed, where, dtype=dtype) >= rate).to(dtype).div_(1 - rate)


def _mix(x: Tensor) -> Tensor:
    x = x & _LOW
    x = (x ^ (x >> 16)) * 0x7FEB352D & _LOW
    x = (x ^ (x >> 15)) * 0x846CA68B & _LOW
    return x ^ (x >> 16)
