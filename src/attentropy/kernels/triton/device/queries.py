"""Backward over the keys: the gradients of q, of the scale, and of the additive terms.

With dx the gradient of scale * score, g_i = sum_j dx_ij k_j: dq = scale * g and dscale = q.g.
Bias and relative bias take ds itself, added atomically where several tiles share an entry.
"""

import triton
import triton.language as tl

from attentropy.kernels.triton.device.coefficients import load_slopes, slope_of
from attentropy.kernels.triton.device.dropout import gains
from attentropy.kernels.triton.device.logits import LOG2E, final, relative_at
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
from attentropy.kernels.triton.device.visibility import key_span, load_row


@triton.jit
def add_bias(dbias, ds, seen, row, j, SPREAD_I: tl.constexpr, SPREAD_J: tl.constexpr):
    """Add ds to the gradient of the bias; SPREAD: the bias has but one row, or one column."""
    at = dbias
    if SPREAD_I:
        ds = tl.sum(ds, 0)[None, :]
        seen = tl.max(seen.to(tl.int32), 0)[None, :] > 0
    if SPREAD_J:
        ds = tl.sum(ds, 1)[:, None]
        seen = tl.max(seen.to(tl.int32), 1)[:, None] > 0
    i = row[2].to(tl.int64)
    if SPREAD_I:
        i = tl.zeros((1, 1), tl.int64)
    if SPREAD_J:
        j = tl.zeros((1, 1), tl.int32)
    ptr = at.ptr + row[0] * at.b + row[1] * at.h + i * at.i + j * at.j
    tl.atomic_add(ptr, ds, mask=seen, sem="relaxed")


@triton.jit
def sweep(
    g, q, dout, ours, q_tile, do_tile, k, v, hk, row, terms, drop,
    slopes, row_slopes, dbias, drelative, begin, end, skip, gap,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
    TAIL_D: tl.constexpr, TAIL_V: tl.constexpr,
    BLOCK: tl.constexpr, TILE: tl.constexpr, PRECISION: tl.constexpr,
    SPREAD_I: tl.constexpr, SPREAD_J: tl.constexpr, SAFE: tl.constexpr,
    PART: tl.constexpr, EDGE: tl.constexpr,
):  # fmt: skip
    """Add the share of the keys from `begin` to `end`, but for a `gap` at `skip`, to g.

    Without EDGE there is no gap, and pointers move on from tile to tile.
    """
    GUARD: tl.constexpr = EDGE or (terms.mask is not None) or (terms.bias is not None)
    MENDED: tl.constexpr = (terms.lo is not None) or (terms.hi is not None)
    CLAMP: tl.constexpr = GUARD or (drelative is not None) or (not MENDED)
    unit = row[4] * LOG2E
    start = (begin + tl.arange(0, TILE)).to(tl.int64)
    k_at = places_pair(k, (row[0], hk, start, start >= 0), BLOCK_D, TAIL_D)
    v_at = places_pair(v, (row[0], hk, start, start >= 0), BLOCK_V, TAIL_V)
    for step in range(begin, end - gap, TILE):
        first = step + tl.where(step >= skip, gap, 0) if EDGE else step
        key = first + tl.arange(0, TILE)
        inside = key < terms.keys
        j = key[None, :]
        theirs = (row[0], hk, key.to(tl.int64), inside)
        if EDGE:
            k_at = places_pair(k, theirs, BLOCK_D, TAIL_D)
            v_at = places_pair(v, theirs, BLOCK_V, TAIL_V)
        if PART:
            x = product(q, ours, k, theirs, BLOCK, TILE, D, PART, PRECISION)
            dp = product(dout, ours, v, theirs, BLOCK, TILE, DV, PART, PRECISION)
        else:
            k_tile = load_pair(k_at, inside, D, EDGE)
            v_tile = load_pair(v_at, inside, DV, EDGE)
            x = scores(q_tile, k_tile, PRECISION)
            dp = scores(do_tile, v_tile, PRECISION)
        s, seen, damp = final(x, row, j, terms, EDGE)
        if drop is not None:
            dp *= gains(drop, row[0], row[1], row[2], first, TILE)
        _, ds = slope_of(s, dp, seen, unit, row_slopes, slopes, terms, GUARD, CLAMP)
        if dbias is not None:
            add_bias(dbias, ds, seen, row, j, SPREAD_I, SPREAD_J)
        if drelative is not None:
            d = j - (row[2] + terms.keys - terms.queries)
            tl.atomic_add(relative_at(drelative, row[1], d), ds, mask=seen, sem="relaxed")
        dx = narrow(ds * damp, k.ptr.dtype.element_ty)
        if SAFE:
            g = (add_seen(g[0], dx, seen, k, row[0], hk, first, terms.keys, D, BLOCK_D), None)
        else:
            if PART:
                k_tile = load_pair(k_at, inside, D, EDGE)
            g = dot_pair(dx, k_tile, PRECISION, g)
        if not EDGE:
            k_at = moved(k_at, TILE * k.i)
            v_at = moved(v_at, TILE * v.i)
    return g


@triton.jit
def queries_backward(
    q, k, v, dout, terms, drop, slopes, dq, dscale, dbias, drelative, unsure, heads, key_heads,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
    TAIL_D: tl.constexpr, TAIL_V: tl.constexpr,
    PRECISION: tl.constexpr, SPREAD_I: tl.constexpr, SPREAD_J: tl.constexpr,
    SAFE: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """One program: BLOCK queries of one head. `dq` and `dscale` are contiguous.

    SAFE does rows that are `unsure` again, see `tiles.add_seen`.
    """
    queries = terms.queries
    blocks = tl.cdiv(queries, BLOCK)
    pid = tl.program_id(0)
    r = (blocks - 1 - pid % blocks) * BLOCK + tl.arange(0, BLOCK)
    alive = r < queries
    b = (pid // blocks // heads).to(tl.int64)
    h = (pid // blocks % heads).to(tl.int64)
    hk = h // (heads // key_heads)
    rows = (b * heads + h) * queries + r
    if SAFE:
        alive = alive & (tl.load(unsure + rows, mask=alive, other=0) > 0)
    row = load_row(terms, b, h, r[:, None], alive[:, None])
    row_slopes = load_slopes(slopes, b * heads + h, 0, r[:, None], alive[:, None], terms, True)
    ours = (b, h, r.to(tl.int64), alive)
    q_at = places_pair(q, ours, BLOCK_D, TAIL_D)
    q_tile = load_pair(q_at, alive, D, True)
    do_tile = load_pair(places_pair(dout, ours, BLOCK_V, TAIL_V), alive, DV, True)

    g = zero_pair(BLOCK, BLOCK_D, TAIL_D)
    begin, whole, rest, end = key_span(row, terms.keys, TILE)
    if SAFE:
        rest = whole
    else:
        g = sweep(
            g, q, dout, ours, q_tile, do_tile, k, v, hk, row, terms, drop,
            slopes, row_slopes, dbias, drelative, whole, rest, end, 0,
            D, DV, BLOCK_D, BLOCK_V, TAIL_D, TAIL_V, BLOCK, TILE, PRECISION, SPREAD_I, SPREAD_J,
            SAFE, PART, False,
        )  # fmt: skip
    g = sweep(
        g, q, dout, ours, q_tile, do_tile, k, v, hk, row, terms, drop,
        slopes, row_slopes, dbias, drelative, begin, end, whole, rest - whole,
        D, DV, BLOCK_D, BLOCK_V, TAIL_D, TAIL_V, BLOCK, TILE, PRECISION, SPREAD_I, SPREAD_J,
        SAFE, PART, True,
    )  # fmt: skip

    if dscale is not None:
        if PART:
            q_tile = load_pair(q_at, alive, D, True)
        turned = tl.sum(q_tile[0].to(tl.float32) * g[0], 1)
        if TAIL_D:
            turned += tl.sum(q_tile[1].to(tl.float32) * g[1], 1)
        tl.store(dscale + rows, turned, mask=alive)
    bad = store_pair(dq, times(g, row[4]), rows, alive, D)
    if (unsure is not None) and not SAFE:
        tl.store(unsure + rows, bad.to(tl.int8), mask=alive)
