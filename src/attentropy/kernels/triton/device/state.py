"""The state of a row of attention, its online update and its merge: written once.

With y = r * unit the logits of the keys seen so far in units of log 2, and m the largest r:

    m, l = sum 2^z, t = sum z 2^z, u = sum z^2 2^z, c = sum 2^2z, z = r * unit - pivot

and the output accumulator, which scales as l does. The pivot is m * unit, rounded: z is one
multiply-add that rounds once, so that a large common term costs no digits, and that of the largest
logit is what the product was rounded by, not 0. At the end, `settle` refers the sums to m itself.
Then all terms of l, u and c are positive and all of t negative, so nothing cancels, and a one-hot
row has l = c = 1 and t = 0 exactly.

While tiles come in, a row is `SLOTS` states side by side that share m: of every eight columns of a
tile each slot has two that are neighbours. A matrix product leaves those in the same thread: sums
over them take no exchange between threads. The largest logit of a slot is kept with the tile that
it came from; which key of that tile it was is asked once, at the end (`forward.loudest_key`).

The shapes are those that Triton's compiler keeps where the product left them. Weights are not cut
up and joined again: a joined tile would be shuffled between threads on its way to the next product.
"""

import triton
import triton.language as tl

from attentropy.kernels.triton.device.logits import HIDDEN, LN2, LOG2E

SLOTS = tl.constexpr(4)
# columns that a matrix product leaves to the four threads of a row, two to each
OCTET = tl.constexpr(8)
# 2^-200 is 0 in float32, and 0 * -200 is 0, which 0 * -inf is not
FLOOR = tl.constexpr(-200.0)
# beyond every key
NOWHERE = tl.constexpr(2147483647)
# stands for the maximum of keys that are visible and yet all -inf: m is there, and l is 0
LOWEST = tl.constexpr(-3.4028234663852886e38)
ROUNDING = tl.constexpr(2.0**-20)  # of a sum of a few float32 terms, relative to the largest
# marks of rows for later launches, as bits: not finite, and varentropy to be summed about the mean
NOT_FINITE = tl.constexpr(1)
SPREAD_OUT = tl.constexpr(2)
# a squared mean of so many varentropies costs varentropy five digits of float32 at most
CANCELLING = tl.constexpr(32.0)
# the statistics that a kernel is asked for, as bits of WANTED
ENTROPY = tl.constexpr(1)
VARENTROPY = tl.constexpr(2)
COLLISION = tl.constexpr(4)
ARGMAX = tl.constexpr(8)


@triton.jit
def empty(ROWS: tl.constexpr, WANTED: tl.constexpr):
    """The slots of rows that saw nothing; one is enough for l alone."""
    SUMS: tl.constexpr = SLOTS if (ENTROPY | VARENTROPY | COLLISION) & WANTED else 1
    zero = tl.zeros((ROWS, SUMS), tl.float32)
    low = tl.full((ROWS,), HIDDEN, tl.float32)
    best = tl.full((ROWS, SLOTS), HIDDEN, tl.float32)
    since = tl.full((ROWS, SLOTS), -1, tl.int32)
    return low, zero, zero, zero, zero, best, since, low[:, None]


@triton.jit
def rescale(l, t, u, c, fall, alpha, WANTED: tl.constexpr):
    """Refer the sums to a maximum that is higher by -fall; alpha is 2^fall."""
    if VARENTROPY & WANTED:
        u = alpha * (u + fall * (2 * t + fall * l))
    if (ENTROPY | VARENTROPY) & WANTED:
        t = alpha * (t + fall * l)
    if COLLISION & WANTED:
        c = alpha * alpha * c
    return alpha * l, t, u, c


@triton.jit
def peaks_of(r):
    """The largest logit of every slot of a tile [M,N]: [M, SLOTS]."""
    octet = tl.max(tl.reshape(r, (r.shape[0], r.shape[1] // OCTET, OCTET)), 1)
    return tl.max(tl.reshape(octet, (r.shape[0], SLOTS, OCTET // SLOTS)), 2)


@triton.jit
def halves(x):
    """The first and the second half of the columns; of an octet, the even and the odd ones."""
    if x.shape[1] > OCTET:
        parts = tl.permute(tl.reshape(x, (x.shape[0], 2, x.shape[1] // 2)), (0, 2, 1))
    else:
        parts = tl.reshape(x, (x.shape[0], x.shape[1] // 2, 2))
    return tl.split(parts)


@triton.jit
def add(sums, p, z, WANTED: tl.constexpr):
    """The sums of every slot with the weights p [M,N] at distances z: chains of multiply-adds."""
    if p.shape[1] > SLOTS:
        p1, p2 = halves(p)
        z1, z2 = halves(z)
        sums = add(sums, p1, z1, WANTED)
        sums = add(sums, p2, z2, WANTED)
    else:
        l, t, u, c = sums
        l += p
        if VARENTROPY & WANTED:
            moved = p * z
            t += moved
            u += moved * z
        elif ENTROPY & WANTED:
            t += p * z
        if COLLISION & WANTED:
            c += p * p
        sums = (l, t, u, c)
    return sums


@triton.jit
def absorb(slots, r, seen, first, unit, WANTED: tl.constexpr, HIDES: tl.constexpr):
    """Take in a tile of logits r [M,N] of the keys from `first`, some not seen if HIDES.

    Hidden logits are -inf. `unit` is that of the rows, one number or [M,1], and positive. Returns
    the unnormalised weights of the tile, the factor of the accumulator [M,1], and the slots. A
    visible logit of -inf makes sums NaN unless HIDES: `absorb_safely` does not.
    """
    m, l, t, u, c, best, since, pivot = slots
    SUMMED: tl.constexpr = (ENTROPY | VARENTROPY | COLLISION) & WANTED
    if ARGMAX & WANTED:
        peaks = peaks_of(r)
        since = tl.where(peaks > best, first, since)
        best = tl.maximum(best, peaks)
        largest = tl.max(best, 1)
    elif SUMMED:
        # by slot, so that the compiler keeps the sums in the threads of the slots
        largest = tl.max(peaks_of(r), 1)
    else:
        largest = tl.max(r, 1)
    if HIDES:
        sunk = (largest == HIDDEN) & (tl.max(seen.to(tl.int32), 1) > 0)
        largest = tl.where(sunk, LOWEST, largest)
    m = tl.maximum(m, largest)
    # of a maximum, so that no compiler takes this product together with a subtraction
    above = tl.maximum(pivot, m[:, None] * unit)
    fall = tl.maximum(pivot - above, FLOOR)
    alpha = tl.exp2(fall)
    z = tl.fma(r, unit, -(tl.where(m[:, None] <= LOWEST, 0.0, above) if HIDES else above))
    p = tl.exp2(z)
    if SUMMED:
        if HIDES:
            z = tl.maximum(z, FLOOR)
        l, t, u, c = add(rescale(l, t, u, c, fall, alpha, WANTED), p, z, WANTED)
    else:
        l = l * alpha + tl.sum(p, 1)[:, None]
    return p, alpha, (m, l, t, u, c, best, since, above)


@triton.jit
def settle(slots, size, unit):
    """Slots as one state (m, l, t, u, c) of each row about m, in natural units.

    A logit is r times `size`, [M]; `unit` is that of the slots. Last comes the weight of the
    largest logit about the pivot, by which the accumulator is larger too.
    """
    m, l, t, u, c, _, _, pivot = slots
    l, t, u, c = tl.sum(l, 1), tl.sum(t, 1), tl.sum(u, 1), tl.sum(c, 1)
    kept = (m == HIDDEN) | (m == LOWEST)
    lift = tl.where(kept, 0.0, tl.sum(tl.fma(m[:, None], unit, -pivot), 1))
    peak = tl.exp2(lift)
    # rounding apart, no distance from the maximum is positive and no square negative
    t_about = (t - lift * l) / peak
    t_about = tl.where(t_about > 0, 0.0, t_about)
    u_about = (u + lift * (lift * l - 2 * t)) / peak
    # what is smaller than the rounding of its terms is 0, as it must be where all logits are equal
    u_about = tl.where(u_about < lift * lift * l * ROUNDING, 0.0, u_about) * (LN2 * LN2)
    # quotients that are 1 exactly where the largest logit is alone
    l, c = tl.div_rn(l, peak), tl.div_rn(c, peak * peak)
    return (tl.where(kept, m, m * size), l, t_about * LN2, u_about, c), peak


@triton.jit
def blind(ROWS: tl.constexpr):
    """The state of rows that saw nothing, with their argmax: the identity of `merge`."""
    zero = tl.zeros((ROWS,), tl.float32)
    return zero + HIDDEN, zero, zero, zero, zero, tl.full((ROWS,), -1, tl.int32)


@triton.jit
def about(state, pivot):
    """The sums of a state (l, t, u, c) referred to `pivot`, and the factor of its accumulator."""
    m, l, t, u, c, _ = state
    fall = tl.maximum((m - pivot) * LOG2E, FLOOR) * LN2
    alpha = tl.exp2(fall * LOG2E)
    u = alpha * (u + fall * (2 * t + fall * l))
    return alpha * l, alpha * (t + fall * l), u, alpha * alpha * c, alpha


@triton.jit
def merge(ours, theirs):
    """The state of both sets of keys, and the factors of the two accumulators.

    Of equal maxima the first keeps its argmax: `theirs` are the later keys.
    """
    m, top = ours[0], ours[5]
    m2, top2 = theirs[0], theirs[5]
    m_next = tl.maximum(m, m2)
    l, t, u, c, alpha = about(ours, m_next)
    l2, t2, u2, c2, beta = about(theirs, m_next)
    top = tl.where(m2 > m, top2, top)
    return (m_next, l + l2, t + t2, u + u2, c + c2, top), alpha, beta


@triton.jit
def absorb_safely(state, s, seen, j):
    """Take in a tile of logits s [M,N] of keys j [1,N], in natural units and in their order.

    A visible logit of -inf has no weight, and the argmax of a row with NaN is its first NaN.
    """
    m, l, t, u, c, top = state
    largest = tl.max(s, 1)
    sunk = (largest == HIDDEN) & (tl.max(seen.to(tl.int32), 1) > 0)
    peak = tl.where(sunk, LOWEST, largest)
    m_next = tl.maximum(m, peak)
    l, t, u, c, alpha = about(state, m_next)
    z = s - tl.where(m_next == HIDDEN, 0.0, m_next)[:, None]
    p = tl.exp2(z * LOG2E)
    z = tl.maximum(z, FLOOR)
    l += tl.sum(p, 1)
    t += tl.sum(p * z, 1)
    u += tl.sum(p * z * z, 1)
    c += tl.sum(p * p, 1)
    first = tl.min(tl.where((s == largest[:, None]) & seen, j, NOWHERE), 1)
    first = tl.where(peak < m, NOWHERE, first)
    latest = tl.where(peak > m, first, tl.minimum(first, top))
    m_next, top = put_nan(m, m_next, top, latest, s, j)
    return p, alpha, (m_next, l, t, u, c, top)


@triton.jit
def put_nan(m, m_next, top, latest, s, j):
    """Maximum and argmax where NaN is the largest of all: for tiles in the order of the keys."""
    first = tl.min(tl.where(s != s, j, NOWHERE), 1)
    here = first < NOWHERE
    before = m != m
    latest = tl.where(before, top, tl.where(here, first, latest))
    return tl.where(before | here, float("nan"), m_next), latest


@triton.jit
def read(state):
    """1/l, log l, lse, entropy, varentropy and sum p^2; 0, 0, -inf, 0, 0 and 0 for a blind row.

    Last, whether varentropy lost digits, being the difference of much larger squares.
    """
    m, l, t, u, c, _ = state
    blind = m == HIDDEN
    inverse = tl.where(blind, 0.0, tl.where(l == 0, float("nan"), 1 / l))
    log_l = tl.where(blind, 0.0, tl.log2(l) * LN2)
    lse = tl.where(m == float("inf"), m, m + log_l)
    mean = t * inverse
    spread = u * inverse - mean * mean
    # the difference of two roundings is not below 0, unless it is NaN
    spread = tl.where(spread < 0, 0.0, spread)
    lost = mean * mean > CANCELLING * spread
    return inverse, log_l, lse, log_l - mean, spread, c * inverse * inverse, lost


@triton.jit
def loudest(state):
    """The largest logit: NaN where one of the row's logits is NaN, -inf where all are that."""
    m, l = state[0], state[1]
    m = tl.where(l == 0, HIDDEN, m)
    return tl.where((l != l) & (m < float("inf")), l, m)
