"""Which weights survive dropout: the draws of `attentropy.kernels.noise`, in 32-bit arithmetic.

A draw depends on the seed and the place (b, h, i, j) only, so that the backward pass, another
tile size, another split of the keys and another kernel drop the same weights.
"""

import triton
import triton.language as tl


@triton.jit
def mix(x):
    """An avalanche of 32 bits: every bit of x moves half of the result."""
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def word(x):
    """The low 32 bits, unsigned."""
    return x.to(tl.int32).to(tl.uint32, bitcast=True)


@triton.jit
def gains(drop, b, h, i, j):
    """1/(1 - rate) where the weight stays, 0 where it is dropped."""
    key = mix(word(b + drop.low))
    key = mix(word(h + drop.high) + key)
    key = mix(word(i) + key)
    draw = mix(mix(word(j)) ^ key) >> 9
    return tl.where(draw.to(tl.int32) >= drop.threshold, drop.gain, 0.0)
