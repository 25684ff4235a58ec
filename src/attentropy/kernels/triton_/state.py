"""The state of a row of attention, its online update and its merge: written once.

With s the logits of the keys seen so far, in units of log 2, and m their maximum:

    m, l = sum 2^(s-m), t = sum (s-m) 2^(s-m), c = sum 4^(s-m), top = argmax s

and the output accumulator, which scales as l does. All terms of l and c are positive and all of t
negative, so nothing cancels, and a one-hot row has l = c = 1 and t = 0 exactly.
"""

import triton
import triton.language as tl

from attentropy.kernels.triton_.logits import LN2

NOTHING = tl.constexpr(float("-inf"))
# 2^-200 is 0 in float32, and 0 * -200 is 0, which 0 * -inf is not
FLOOR = tl.constexpr(-200.0)


@triton.jit
def empty(ROWS: tl.constexpr):
    """The state of rows that saw nothing: the identity of `merge`."""
    zero = tl.zeros((ROWS,), tl.float32)
    return zero + NOTHING, zero, zero, zero, tl.full((ROWS,), -1, tl.int32)


@triton.jit
def pivot_of(m):
    """The maximum, or 0 while nothing was seen: keeps inf - inf away."""
    return tl.where(m == NOTHING, 0.0, m)


@triton.jit
def rescale(l, t, c, m, pivot):
    """Refer l, t, c from the maximum m to `pivot`; also the factor for the accumulator."""
    fall = tl.where(m == NOTHING, 0.0, m - pivot)
    alpha = tl.exp2(fall)
    return alpha * l, alpha * (t + fall * l), alpha * alpha * c, alpha


@triton.jit
def absorb(state, s, j, STATS: tl.constexpr):
    """Take in a tile of logits s [M,N] of keys j [1,N].

    Returns the unnormalised weights of the tile, the factor of the accumulator, and the state.
    Without STATS this is plain flash attention, which the cost of the statistics is counted
    against.
    """
    m, l, t, c, top = state
    peak = tl.max(s, 1)
    m_next = tl.maximum(m, peak)
    pivot = pivot_of(m_next)
    l, t, c, alpha = rescale(l, t, c, m, pivot)
    z = s - pivot[:, None]
    p = tl.exp2(z)
    l += tl.sum(p, 1)
    if STATS:
        t += tl.sum(p * tl.maximum(z, FLOOR), 1)
        c += tl.sum(p * p, 1)
        first = tl.min(tl.where(s == peak[:, None], j, 2147483647), 1)
        first = tl.where(peak < m, 2147483647, first)
        top = tl.where(peak > m, first, tl.minimum(first, top))
    return p, alpha, (m_next, l, t, c, top)


@triton.jit
def merge(ours, theirs):
    """The state of both sets of keys, and the factors of the two accumulators.

    Of equal maxima the first keeps its argmax: `theirs` are the later keys.
    """
    m, l, t, c, top = ours
    m2, l2, t2, c2, top2 = theirs
    m_next = tl.maximum(m, m2)
    pivot = pivot_of(m_next)
    l, t, c, alpha = rescale(l, t, c, m, pivot)
    l2, t2, c2, beta = rescale(l2, t2, c2, m2, pivot)
    top = tl.where(m2 > m, top2, top)
    return (m_next, l + l2, t + t2, c + c2, top), alpha, beta


@triton.jit
def read(state):
    """1/l, lse, entropy and sum p^2, in natural units; 0, -inf, 0 and 0 for a blind row."""
    m, l, t, c, _ = state
    blind = l == 0
    inverse = tl.where(blind, 0.0, 1 / l)
    log_l = tl.where(blind, 0.0, tl.log2(l))
    entropy = (log_l - t * inverse) * LN2
    lse = tl.where(m == float("inf"), m, m + log_l) * LN2
    return inverse, lse, entropy, c * inverse * inverse


@triton.jit
def loudest(state):
    """The largest logit in natural units, NaN where one of the row's logits is NaN."""
    m, l = state[0], state[1]
    return tl.where((l != l) & (m < float("inf")), l, m) * LN2
