"""Which weights survive dropout: the Philox draws of `attentropy.kernels.noise`.

A draw depends on the seed and the place (b, h, i, j) only, so that the backward pass, another
tile size, another split of the keys and another kernel drop the same weights.
"""

import triton
import triton.language as tl

ROUNDS = tl.constexpr(10)
# a draw has the upper 23 bits of a word
UNUSED = tl.constexpr(9)


@triton.jit
def word(x):
    """The low 32 bits, unsigned."""
    return tl.cast(x, tl.int32).to(tl.uint32, bitcast=True)


@triton.jit
def philox(c0, c1, c2, c3, k0, k1):
    """Philox4x32-10: four random words for each counter. A product gives both of its halves."""
    for _ in tl.static_range(ROUNDS):
        a = c0.to(tl.uint64) * 0xD2511F53
        b = c2.to(tl.uint64) * 0xCD9E8D57
        c0 = (b >> 32).to(tl.uint32) ^ c1 ^ k0
        c2 = (a >> 32).to(tl.uint32) ^ c3 ^ k1
        c1 = b.to(tl.uint32)
        c3 = a.to(tl.uint32)
        k0 += 0x9E3779B9
        k1 += 0xBB67AE85
    return c0, c1, c2, c3


@triton.jit
def stays(drop, b, h, i, first, KEYS: tl.constexpr):
    """Which weights of queries i [M,1] stay, [M,KEYS]: those whose draw reaches the threshold.

    The KEYS keys start at `first`, a multiple of 4; every four of them share a counter.
    """
    fours = first // 4 + tl.arange(0, KEYS // 4)[None, :]
    w0, w1, w2, w3 = philox(word(fours), word(i), word(h), word(b), word(drop.low), word(drop.high))
    drawn = tl.interleave(tl.interleave(w0, w2), tl.interleave(w1, w3))
    # the threshold in the place of the draw: words are compared as they are
    return drawn >= word(drop.threshold) << UNUSED


@triton.jit
def gains(drop, b, h, i, first, KEYS: tl.constexpr):
    """1/(1 - rate) where the weight stays, 0 where it is dropped: as `stays`."""
    return tl.where(stays(drop, b, h, i, first, KEYS), drop.gain, 0.0)
