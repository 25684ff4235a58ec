"""Backward over the queries: the gradients of k and v.

Queries are the columns of the tile, so that the weights come out transposed as the products need
them. The query heads that share a key head are taken one after the other.
"""

import triton
import triton.language as tl

from attentropy.kernels.triton.device.coefficients import load_slopes, slope_of
from attentropy.kernels.triton.device.dropout import gains
from attentropy.kernels.triton.device.logits import LOG2E, final
from attentropy.kernels.triton.device.tiles import (
    add_seen,
    dot_pair,
    load_pair,
    moved,
    narrow,
    places_pair,
    product,
    scores,
    store_pair,
    times,
    zero_pair,
)
from attentropy.kernels.triton.device.visibility import along, load_row, query_span


@triton.jit
def sweep(
    dk, dv, q, dout, k, v, ours, k_tile, v_tile, b, h, first, j, terms, drop, slopes, heads,
    begin, end, skip, gap,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
    TAIL_D: tl.constexpr, TAIL_V: tl.constexpr,
    BLOCK: tl.constexpr, TILE: tl.constexpr, PRECISION: tl.constexpr, SAFE: tl.constexpr,
    PART: tl.constexpr, EDGE: tl.constexpr,
):  # fmt: skip
    """Add to dk and dv the queries from `begin` to `end` of head h, but for a `gap` at `skip`.

    Without EDGE there is no gap, and pointers move on from tile to tile. A scale that all
    queries share is multiplied at the end, by `keys_backward`.
    """
    GUARD: tl.constexpr = EDGE or (terms.mask is not None) or (terms.bias is not None)
    CLAMP: tl.constexpr = GUARD or ((terms.lo is None) and (terms.hi is None))
    ONE: tl.constexpr = (terms.scale.h is None) and (terms.scale.i is None)
    start = (begin + tl.arange(0, TILE)).to(tl.int64)
    q_at = places_pair(q, (b, h, start, start >= 0), BLOCK_D, TAIL_D)
    do_at = places_pair(dout, (b, h, start, start >= 0), BLOCK_V, TAIL_V)
    for step in range(begin, end - gap, TILE):
        at = step + tl.where(step >= skip, gap, 0) if EDGE else step
        r = at + tl.arange(0, TILE)
        alive = r < terms.queries
        i = r[None, :]
        theirs = (b, h, r.to(tl.int64), alive)
        if EDGE:
            q_at = places_pair(q, theirs, BLOCK_D, TAIL_D)
            do_at = places_pair(dout, theirs, BLOCK_V, TAIL_V)
        if PART:
            x = product(k, ours, q, theirs, BLOCK, TILE, D, PART, PRECISION)
            dp = product(v, ours, dout, theirs, BLOCK, TILE, DV, PART, PRECISION)
        else:
            q_tile = load_pair(q_at, alive, D, EDGE)
            do_tile = load_pair(do_at, alive, DV, EDGE)
            x = scores(k_tile, q_tile, PRECISION)
            dp = scores(v_tile, do_tile, PRECISION)
        row = load_row(terms, b, h, i, alive[None, :])
        unit = row[4] * LOG2E
        place = tl.arange(0, TILE)[None, :]
        row_slopes = load_slopes(slopes, b * heads + h, at, place, alive[None, :], terms, EDGE)
        s, seen, damp = final(x, row, j, terms, EDGE)
        if drop is not None:
            gain = tl.trans(gains(drop, b, h, r[:, None], first, BLOCK))
            p, ds = slope_of(s, dp * gain, seen, unit, row_slopes, slopes, terms, GUARD, CLAMP)
            p *= gain
        else:
            p, ds = slope_of(s, dp, seen, unit, row_slopes, slopes, terms, GUARD, CLAMP)
        if not ONE:
            ds *= row[4]
        dx = narrow(ds * damp, q.ptr.dtype.element_ty)
        p = narrow(p, dout.ptr.dtype.element_ty)
        if SAFE:
            dv = (add_seen(dv[0], p, seen, dout, b, h, at, terms.queries, DV, BLOCK_V), None)
            dk = (add_seen(dk[0], dx, seen, q, b, h, at, terms.queries, D, BLOCK_D), None)
        else:
            if PART:
                do_tile = load_pair(do_at, alive, DV, EDGE)
            dv = dot_pair(p, do_tile, PRECISION, dv)
            if PART:
                q_tile = load_pair(q_at, alive, D, EDGE)
            dk = dot_pair(dx, q_tile, PRECISION, dk)
        if not EDGE:
            q_at = moved(q_at, TILE * q.i)
            do_at = moved(do_at, TILE * dout.i)
    return dk, dv


@triton.jit
def keys_backward(
    q, k, v, dout, terms, drop, slopes, spans, dk_out, dv_out, unsure, heads, key_heads,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
    TAIL_D: tl.constexpr, TAIL_V: tl.constexpr,
    PRECISION: tl.constexpr, SAFE: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr,
    PART: tl.constexpr,
):  # fmt: skip
    """One program: BLOCK keys of one key head. `dk_out` and `dv_out` are contiguous.

    SAFE does blocks that are `unsure` again, see `tiles.add_seen`.
    """
    blocks = tl.cdiv(terms.keys, BLOCK)
    pid = tl.program_id(0)
    b = (pid // blocks // key_heads).to(tl.int64)
    hk = (pid // blocks % key_heads).to(tl.int64)
    group = heads // key_heads
    first = pid % blocks * BLOCK
    key = first + tl.arange(0, BLOCK)
    inside = key < terms.keys
    j = key[:, None]
    ours = (b, hk, key.to(tl.int64), inside)
    k_tile = load_pair(places_pair(k, ours, BLOCK_D, TAIL_D), inside, D, True)
    v_tile = load_pair(places_pair(v, ours, BLOCK_V, TAIL_V), inside, DV, True)

    rows = (b * key_heads + hk) * terms.keys + key
    again = 1
    if SAFE:
        again = tl.max(tl.load(unsure + rows, mask=inside, other=0).to(tl.int32), 0)
        inside = inside & (tl.where(inside, again, 0) > 0)
    dk, dv = zero_pair(BLOCK, BLOCK_D, TAIL_D), zero_pair(BLOCK, BLOCK_V, TAIL_V)
    for member in range(0, group):
        h = hk * group + member
        begin, whole, rest, end = query_span(terms, spans, b, h, first, TILE, BLOCK)
        if SAFE:
            rest, end = whole, tl.where(again > 0, end, begin)
        else:
            dk, dv = sweep(
                dk, dv, q, dout, k, v, ours, k_tile, v_tile,
                b, h, first, j, terms, drop, slopes, heads, whole, rest, end, 0,
                D, DV, BLOCK_D, BLOCK_V, TAIL_D, TAIL_V, BLOCK, TILE, PRECISION, SAFE, PART, False,
            )  # fmt: skip
        dk, dv = sweep(
            dk, dv, q, dout, k, v, ours, k_tile, v_tile,
            b, h, first, j, terms, drop, slopes, heads, begin, end, whole, rest - whole,
            D, DV, BLOCK_D, BLOCK_V, TAIL_D, TAIL_V, BLOCK, TILE, PRECISION, SAFE, PART, True,
        )  # fmt: skip
    if (terms.scale.h is None) and (terms.scale.i is None):
        dk = times(dk, tl.load(along(terms.scale, b, hk, 0)).to(tl.float32))
    bad = store_pair(dk_out, dk, rows, inside, D) | store_pair(dv_out, dv, rows, inside, DV)
    if (unsure is not None) and not SAFE:
        tl.store(unsure + rows, bad.to(tl.int8), mask=inside)
