"""Which weights survive dropout: the Philox draws of `attentropy.kernels.noise`.

A draw depends on the seed and the place (b, h, i, j) only, so that the backward pass, another
tile size, another split of the keys and another kernel drop the same weights.
"""

import triton
import triton.language as tl
from triton.language.random import philox_impl


@triton.jit
def word(x):
    """The low 32 bits, unsigned."""
    return tl.to_tensor(x).to(tl.int32).to(tl.uint32, bitcast=True)


@triton.jit
def gains(drop, b, h, i, first, KEYS: tl.constexpr):
    """1/(1 - rate) where the weight stays, 0 where it is dropped: of queries i [M,1], [M,KEYS].

    The KEYS keys start at `first`, a multiple of 4; every four of them share a counter.
    """
    fours = first // 4 + tl.arange(0, KEYS // 4)[None, :]
    w0, w1, w2, w3 = philox_impl(
        word(fours), word(i), word(h), word(b), word(drop.low), word(drop.high)
    )
    draw = tl.interleave(tl.interleave(w0, w2), tl.interleave(w1, w3)) >> 9
    return tl.where(draw.to(tl.int32) >= drop.threshold, drop.gain, 0.0)
