"""Plain flash attention, causal and without statistics: what the kernels of `device` are held to.

Written as short as a kernel of these three sweeps can be: lengths are multiples of the tiles, heads
are contiguous and as wide as a power of two, and the queries come with the scale in them. Row i
has `lse` in units of log 2 and `delta` = sum dO O. `pairs` is None, or a bias [Q,K] in units of
log 2, or a bool mask [Q,K]: read for every pair. With REACH it is a bias of distances j - i
instead, 2 REACH + 1 numbers. PRECISION is that of products of float32: "tf32", "tf32x3" or "ieee".
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LOWEST = tl.constexpr(-1e30)


@triton.jit
def tile_at(at, first, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Pointers to ROWS rows of a head, from `first` on."""
    rows, columns = first + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    return at + rows[:, None] * WIDTH + columns[None, :]


@triton.jit
def laden(x, pairs, i, j, length, REACH: tl.constexpr):
    """Logits x with what is read for every pair: a bias is added, a mask hides."""
    if pairs is not None:
        if REACH:
            read = tl.load(pairs + tl.minimum(tl.maximum(j - i, -REACH), REACH) + REACH)
        else:
            read = tl.load(pairs + i * length + j)
        x = tl.where(read, x, LOWEST) if read.dtype == tl.int1 else x + read
    return x


@triton.jit
def absorb(
    acc, m, l, q, k, v, pairs, scale, length, begin, end, i,
    TILE: tl.constexpr, WIDTH: tl.constexpr, REACH: tl.constexpr, PRECISION: tl.constexpr,
    EDGE: tl.constexpr,
):  # fmt: skip
    """The keys from `begin` to `end`; with EDGE those after the query are hidden."""
    k_at, v_at = tile_at(k, begin, TILE, WIDTH), tile_at(v, begin, TILE, WIDTH)
    for first in range(begin, end, TILE):
        x = tl.dot(q, tl.trans(tl.load(k_at)), input_precision=PRECISION)
        if EDGE:
            x = tl.where(i[:, None] >= first + tl.arange(0, TILE)[None, :], x, LOWEST)
        if pairs is not None:
            j = (first + tl.arange(0, TILE))[None, :]
            x = laden(x * scale, pairs, i[:, None], j, length, REACH)
            m_next = tl.maximum(m, tl.max(x, 1))
            p = tl.exp2(x - m_next[:, None])
        else:
            m_next = tl.maximum(m, tl.max(x, 1) * scale)
            p = tl.exp2(x * scale - m_next[:, None])
        alpha = tl.exp2(m - m_next)
        l = l * alpha + tl.sum(p, 1)
        value = tl.load(v_at)
        acc = tl.dot(p.to(value.dtype), value, acc * alpha[:, None], input_precision=PRECISION)
        m = m_next
        k_at += TILE * WIDTH
        v_at += TILE * WIDTH
    return acc, m, l


@triton.jit
def forward(
    q, k, v, out, lse, pairs, scale, length,
    WIDTH: tl.constexpr, REACH: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """One program: BLOCK queries of one head."""
    head = tl.program_id(1).to(tl.int64) * length
    begin = (tl.num_programs(0) - 1 - tl.program_id(0)) * BLOCK
    i = begin + tl.arange(0, BLOCK)
    k += head * WIDTH
    v += head * WIDTH
    q_tile = tl.load(tile_at(q + head * WIDTH, begin, BLOCK, WIDTH))
    m = tl.full((BLOCK,), LOWEST, tl.float32)
    l = tl.zeros((BLOCK,), tl.float32)
    acc = tl.zeros((BLOCK, WIDTH), tl.float32)
    scale *= LOG2E
    acc, m, l = absorb(
        acc, m, l, q_tile, k, v, pairs, scale, length, 0, begin, i,
        TILE, WIDTH, REACH, PRECISION, False,
    )  # fmt: skip
    last = begin + BLOCK
    acc, m, l = absorb(
        acc, m, l, q_tile, k, v, pairs, scale, length, begin, last, i,
        TILE, WIDTH, REACH, PRECISION, True,
    )  # fmt: skip
    tl.store(lse + head + i, m + tl.log2(l))
    at = tile_at(out + head * WIDTH, begin, BLOCK, WIDTH)
    tl.store(at, (acc / l[:, None]).to(out.dtype.element_ty))


@triton.jit
def add_queries(
    g, q, do, k, v, lse, delta, pairs, length, begin, end, i,
    TILE: tl.constexpr, WIDTH: tl.constexpr, REACH: tl.constexpr, PRECISION: tl.constexpr,
    EDGE: tl.constexpr,
):  # fmt: skip
    """The share of the keys from `begin` to `end` in the gradient of the queries."""
    k_at, v_at = tile_at(k, begin, TILE, WIDTH), tile_at(v, begin, TILE, WIDTH)
    for first in range(begin, end, TILE):
        key, value = tl.load(k_at), tl.load(v_at)
        j = (first + tl.arange(0, TILE))[None, :]
        x = tl.dot(q, tl.trans(key), input_precision=PRECISION)
        x = laden(x, pairs, i[:, None], j, length, REACH)
        p = tl.exp2(x - lse[:, None])
        if EDGE:
            p = tl.where(i[:, None] >= j, p, 0.0)
        ds = p * (tl.dot(do, tl.trans(value), input_precision=PRECISION) - delta[:, None])
        g += tl.dot(ds.to(key.dtype), key, input_precision=PRECISION)
        k_at += TILE * WIDTH
        v_at += TILE * WIDTH
    return g


@triton.jit
def queries(
    q, k, v, dout, dq, lse, delta, pairs, length,
    WIDTH: tl.constexpr, REACH: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """One program: the gradient of BLOCK queries of one head."""
    head = tl.program_id(1).to(tl.int64) * length
    begin = (tl.num_programs(0) - 1 - tl.program_id(0)) * BLOCK
    i = begin + tl.arange(0, BLOCK)
    k += head * WIDTH
    v += head * WIDTH
    q_tile = tl.load(tile_at(q + head * WIDTH, begin, BLOCK, WIDTH))
    do = tl.load(tile_at(dout + head * WIDTH, begin, BLOCK, WIDTH))
    row, shift = tl.load(lse + head + i), tl.load(delta + head + i)
    g = tl.zeros((BLOCK, WIDTH), tl.float32)
    last = begin + BLOCK
    g = add_queries(
        g, q_tile, do, k, v, row, shift, pairs, length, 0, begin, i,
        TILE, WIDTH, REACH, PRECISION, False,
    )  # fmt: skip
    g = add_queries(
        g, q_tile, do, k, v, row, shift, pairs, length, begin, last, i,
        TILE, WIDTH, REACH, PRECISION, True,
    )  # fmt: skip
    tl.store(tile_at(dq + head * WIDTH, begin, BLOCK, WIDTH), g.to(dq.dtype.element_ty))


@triton.jit
def add_keys(
    dk, dv, k, v, q, do, lse, delta, pairs, length, begin, end, j,
    TILE: tl.constexpr, WIDTH: tl.constexpr, REACH: tl.constexpr, PRECISION: tl.constexpr,
    EDGE: tl.constexpr,
):  # fmt: skip
    """The share of the queries from `begin` to `end` in the gradients of keys and values."""
    q_at, do_at = tile_at(q, begin, TILE, WIDTH), tile_at(do, begin, TILE, WIDTH)
    for first in range(begin, end, TILE):
        i = first + tl.arange(0, TILE)
        query, dout = tl.load(q_at), tl.load(do_at)
        x = tl.dot(k, tl.trans(query), input_precision=PRECISION)
        x = laden(x, pairs, i[None, :], j[:, None], length, REACH)
        p = tl.exp2(x - tl.load(lse + i)[None, :])
        if EDGE:
            p = tl.where(i[None, :] >= j[:, None], p, 0.0)
        dv += tl.dot(p.to(dout.dtype), dout, input_precision=PRECISION)
        dp = tl.dot(v, tl.trans(dout), input_precision=PRECISION)
        ds = p * (dp - tl.load(delta + i)[None, :])
        dk += tl.dot(ds.to(query.dtype), query, input_precision=PRECISION)
        q_at += TILE * WIDTH
        do_at += TILE * WIDTH
    return dk, dv


@triton.jit
def keys(
    q, k, v, dout, dk, dv, lse, delta, pairs, length,
    WIDTH: tl.constexpr, REACH: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """One program: the gradients of BLOCK keys and values of one head."""
    head = tl.program_id(1).to(tl.int64) * length
    begin = tl.program_id(0) * BLOCK
    j = begin + tl.arange(0, BLOCK)
    k_tile = tl.load(tile_at(k + head * WIDTH, begin, BLOCK, WIDTH))
    v_tile = tl.load(tile_at(v + head * WIDTH, begin, BLOCK, WIDTH))
    q += head * WIDTH
    dout += head * WIDTH
    lse += head
    delta += head
    gk = tl.zeros((BLOCK, WIDTH), tl.float32)
    gv = tl.zeros((BLOCK, WIDTH), tl.float32)
    middle = begin + BLOCK
    gk, gv = add_keys(
        gk, gv, k_tile, v_tile, q, dout, lse, delta, pairs, length, begin, middle, j,
        TILE, WIDTH, REACH, PRECISION, True,
    )  # fmt: skip
    gk, gv = add_keys(
        gk, gv, k_tile, v_tile, q, dout, lse, delta, pairs, length, middle, length, j,
        TILE, WIDTH, REACH, PRECISION, False,
    )  # fmt: skip
    tl.store(tile_at(dk + head * WIDTH, begin, BLOCK, WIDTH), gk.to(dk.dtype.element_ty))
    tl.store(tile_at(dv + head * WIDTH, begin, BLOCK, WIDTH), gv.to(dv.dtype.element_ty))
