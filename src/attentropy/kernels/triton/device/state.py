"""The state of a row of attention, its online update and its merge: written once.

With s the logits of the keys seen so far and m their maximum:

    m, l = sum e^(s-m), t = sum (s-m) e^(s-m), c = sum e^2(s-m), top = argmax s

and the output accumulator, which scales as l does. All terms of l and c are positive and all of t
negative, so nothing cancels, and a one-hot row has l = c = 1 and t = 0 exactly. The hardware has
2^x only; logits are multiplied by log2(e) after the maximum is taken off, so that a large common
term costs no digits.
"""

import triton
import triton.language as tl

from attentropy.kernels.triton.device.logits import HIDDEN, LN2, exp, minus

# e^-200 is 0 in float32, and 0 * -200 is 0, which 0 * -inf is not
FLOOR = tl.constexpr(-200.0)
# beyond every key
NOWHERE = tl.constexpr(2147483647)
# stands for the maximum of keys that are visible and yet all -inf: m is there, and l is 0
LOWEST = tl.constexpr(-3.4028234663852886e38)


@triton.jit
def empty(ROWS: tl.constexpr):
    """The state of rows that saw nothing: the identity of `merge`."""
    zero = tl.zeros((ROWS,), tl.float32)
    return zero + HIDDEN, zero, zero, zero, tl.full((ROWS,), -1, tl.int32)


@triton.jit
def pivot_of(m):
    """The maximum, or 0 while nothing was seen: keeps inf - inf away."""
    return tl.where(m == HIDDEN, 0.0, m)


@triton.jit
def rescale(l, t, c, m, pivot):
    """Refer l, t, c from the maximum m to `pivot`; also the factor for the accumulator."""
    fall = tl.where(m == HIDDEN, 0.0, m - pivot)
    fall = tl.where(fall < FLOOR, FLOOR, fall)
    alpha = exp(fall)
    return alpha * l, alpha * (t + fall * l), alpha * alpha * c, alpha


@triton.jit
def absorb(state, s, seen, j, STATS: tl.constexpr, HIDES: tl.constexpr, SAFE: tl.constexpr):
    """Take in a tile of logits s [M,N] of keys j [1,N], some of which are not seen if HIDES.

    Returns the unnormalised weights of the tile, the factor of the accumulator, and the state.
    Without STATS this is plain flash attention, which the cost of the statistics is counted
    against. A visible logit of -inf makes t NaN, and the argmax of a row with NaN, or with -inf
    only, is some key: SAFE, which the second launch is, gets them right.
    """
    m, l, t, c, top = state
    largest = tl.max(s, 1)
    sunk = largest == HIDDEN
    if HIDES:
        sunk = sunk & (tl.max(seen.to(tl.int32), 1) > 0)
    peak = tl.where(sunk, LOWEST, largest)
    m_next = tl.maximum(m, peak)
    pivot = pivot_of(m_next)
    l, t, c, alpha = rescale(l, t, c, m, pivot)
    z = minus(s, pivot[:, None])
    p = exp(z)
    l += tl.sum(p, 1)
    if STATS:
        t += tl.sum(p * (tl.maximum(z, FLOOR) if HIDES else z), 1)
        c += tl.sum(p * p, 1)
        loud = s == largest[:, None]
        if SAFE:
            loud = loud & seen
        first = tl.min(tl.where(loud, j, NOWHERE), 1)
        first = tl.where(peak < m, NOWHERE, first)
        latest = tl.where(peak > m, first, tl.minimum(first, top))
        if SAFE:
            m_next, latest = put_nan(m, m_next, top, latest, s, j)
        top = latest
    return p, alpha, (m_next, l, t, c, top)


@triton.jit
def put_nan(m, m_next, top, latest, s, j):
    """Maximum and argmax where NaN is the largest of all: for tiles in the order of the keys."""
    first = tl.min(tl.where(s != s, j, NOWHERE), 1)
    here = first < NOWHERE
    before = m != m
    latest = tl.where(before, top, tl.where(here, first, latest))
    return tl.where(before | here, float("nan"), m_next), latest


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
    """1/l, log l, lse, entropy and sum p^2; 0, 0, -inf, 0 and 0 for a blind row."""
    m, l, t, c, _ = state
    blind = m == HIDDEN
    inverse = tl.where(blind, 0.0, tl.where(l == 0, float("nan"), 1 / l))
    log_l = tl.where(blind, 0.0, tl.log2(l) * LN2)
    lse = tl.where(m == float("inf"), m, m + log_l)
    return inverse, log_l, lse, log_l - t * inverse, c * inverse * inverse


@triton.jit
def loudest(state):
    """The largest logit: NaN where one of the row's logits is NaN, -inf where all are that."""
    m, l = state[0], state[1]
    m = tl.where(l == 0, HIDDEN, m)
    return tl.where((l != l) & (m < float("inf")), l, m)
