"""Which weights survive dropout: a Philox draw from the seed and the place (b, h, i, j).

The draw depends on nothing else, so that the backward pass, another tile size or another split
of the keys drops the same weights.
"""

import triton
import triton.language as tl


@triton.jit
def gains(drop, head, i, j, like):
    """1/(1 - rate) where the weight stays, 0 where it is dropped; `head` counts over [B,H]."""
    zero = tl.zeros(like.shape, tl.int32)
    draw = tl.philox(drop.seed, zero + j, zero + i, zero + head.to(tl.int32), zero)[0]
    return tl.where(draw.to(tl.int64) >= drop.threshold, drop.gain, 0.0)
