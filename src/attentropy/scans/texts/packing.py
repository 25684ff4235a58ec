"""Numbers of tokens as short texts: 16-bit floats and places, compressed."""

import base64
import zlib

import numpy as np
from torch import Tensor

EXACT, COARSE = 10, 6  # bits of precision of a head, and of a mean over heads


def packed(values: Tensor, bits: int) -> str:
    """Numbers as base64 of compressed 16-bit floats, all low bytes before all high ones.

    Args:
        values: any shape; NaN stays NaN.
        bits: bits of the significand that are kept, at most 10.
    """
    half = values.clamp(max=65504).half().contiguous().numpy().view(np.uint16).astype(np.uint32)
    drop = 10 - bits
    if drop:
        half = np.where((half & 0x7C00) == 0x7C00, half, (half + (1 << drop >> 1)) >> drop << drop)
    return _compressed(half.astype("<u2"))


def packed_places(places: Tensor) -> str:
    """Indices of tokens [N,T] as base64 of compressed integers, rank by rank; none is the largest.

    They are 16 bits wide where that is enough for N, else 32, all bytes of one weight together.

    Args:
        places: indices below N, or -1.
    """
    wide = places.shape[0] >= 0xFFFF
    none = 0xFFFFFFFF if wide else 0xFFFF
    found = places.T.masked_fill(places.T < 0, none).contiguous().numpy()
    return _compressed(found.astype("<u4" if wide else "<u2"))


def _compressed(values: np.ndarray) -> str:
    planes = np.ascontiguousarray(values.reshape(-1, 1).view(np.uint8).T)
    return base64.b64encode(zlib.compress(planes.tobytes(), 9)).decode()
