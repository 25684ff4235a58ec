"""The forward pass: one sweep over the keys, which carries the row state and the output."""

import triton
import triton.language as tl

from attentropy.kernels.triton.device.dropout import gains
from attentropy.kernels.triton.device.logits import final
from attentropy.kernels.triton.device.state import absorb, empty, loudest, read
from attentropy.kernels.triton.device.tiles import add_seen, dot, load, narrow, product, spoiled
from attentropy.kernels.triton.device.visibility import key_span, load_row


@triton.jit
def sweep(
    state, acc, q, ours, q_tile, k, v, hk, row, terms, drop, begin, end, skip, gap,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
    BLOCK: tl.constexpr, TILE: tl.constexpr, PRECISION: tl.constexpr, STATS: tl.constexpr,
    SAFE: tl.constexpr, PART: tl.constexpr, EDGE: tl.constexpr,
):  # fmt: skip
    """Absorb the keys from `begin` to `end` tile by tile, but for a `gap` of them at `skip`."""
    HIDES: tl.constexpr = EDGE or (terms.mask is not None) or (terms.bias is not None)
    for step in range(begin, end - gap, TILE):
        first = step + tl.where(step >= skip, gap, 0)
        key = first + tl.arange(0, TILE)
        inside = key < terms.keys
        j = key[None, :]
        theirs = (row[0], hk, key.to(tl.int64), inside)
        if PART:
            x = product(q, ours, k, theirs, BLOCK, TILE, D, PART, PRECISION)
        else:
            k_tile = load(k, theirs, D, BLOCK_D, EDGE)
            x = dot(q_tile, tl.trans(k_tile), PRECISION)
        s, seen, _ = final(x, row, j, terms, EDGE)
        p, alpha, state = absorb(state, s, seen, j, STATS, HIDES, SAFE)
        if drop is not None:
            p *= gains(drop, row[0], row[1], row[2], first, TILE)
        if SAFE:
            acc = acc * alpha[:, None]
            p = narrow(p, v.ptr.dtype.element_ty)
            acc = add_seen(acc, p, seen, v, row[0], hk, first, terms.keys, DV, BLOCK_V)
        else:
            v_tile = load(v, theirs, DV, BLOCK_V, EDGE)
            acc = acc * alpha[:, None]
            acc += dot(narrow(p, v_tile.dtype), v_tile, PRECISION)
    return state, acc


@triton.jit
def unsure(written, rows, alive, terms, DV: tl.constexpr, BLOCK_V: tl.constexpr):
    """Which rows to do again: whose entropy is NaN, and whose output where keys may be hidden."""
    entropy = tl.load(written.entropy + rows, mask=alive, other=0.0)
    bad = entropy != entropy
    INTERVALS: tl.constexpr = (terms.lo is not None) or (terms.hi is not None)
    if INTERVALS or (terms.mask is not None) or (terms.bias is not None):
        bad = bad | spoiled(written.out, rows, alive, DV, BLOCK_V)
    return bad


@triton.jit
def finish(state, acc, written, rows, alive, DV: tl.constexpr, BLOCK_V: tl.constexpr):
    """Read the state and store output and statistics of `rows` of [B,H,Q]."""
    tl.store(written.max_logit + rows, loudest(state), mask=alive)
    tl.store(written.argmax + rows, state[4].to(tl.int64), mask=alive)
    inverse, log_l, lse, entropy, collision = read(state)
    tl.store(written.log_l + rows, log_l, mask=alive)
    tl.store(written.lse + rows, lse, mask=alive)
    tl.store(written.entropy + rows, entropy, mask=alive)
    tl.store(written.collision + rows, collision, mask=alive)
    d = tl.arange(0, BLOCK_V)
    out = narrow(acc * inverse[:, None], written.out.dtype.element_ty)
    tl.store(written.out + rows[:, None] * DV + d[None, :], out, mask=alive[:, None] & (d < DV))


@triton.jit
def keep(state, acc, partial, place, alive, DV: tl.constexpr, BLOCK_V: tl.constexpr):
    """Store the states of one share of the keys."""
    m, l, t, c, top = state
    tl.store(partial.m + place, m, mask=alive)
    tl.store(partial.l + place, l, mask=alive)
    tl.store(partial.t + place, t, mask=alive)
    tl.store(partial.c + place, c, mask=alive)
    tl.store(partial.top + place, top, mask=alive)
    d = tl.arange(0, BLOCK_V)
    tl.store(partial.acc + place[:, None] * DV + d[None, :], acc, mask=alive[:, None] & (d < DV))


@triton.jit
def forward(
    q, k, v, terms, drop, written, partial, heads, key_heads, share, splits, bucket,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
    PACK: tl.constexpr, PRECISION: tl.constexpr, STATS: tl.constexpr, SAFE: tl.constexpr,
    BLOCK: tl.constexpr, TILE: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """One program: BLOCK rows of one head (PACK: of all query heads of one key head).

    With `partial`, one `share` of the keys, whose state is stored for `decode.join` to merge;
    else all keys, and the results. SAFE does rows that are not finite again, see `tiles.add_seen`.
    """
    queries = terms.queries
    group = heads // key_heads
    packed = group if PACK else 1
    blocks = tl.cdiv(queries * packed, BLOCK)
    pid = tl.program_id(0)
    split = pid % splits
    # the last queries of a causal mask see most: they start first
    block = blocks - 1 - (pid // splits) % blocks
    lane = pid // splits // blocks
    b = (lane // (heads // packed)).to(tl.int64)
    r = block * BLOCK + tl.arange(0, BLOCK)
    alive = r < queries * packed
    lead = (lane % (heads // packed)).to(tl.int64) * packed
    h = lead + tl.minimum(r // queries, packed - 1)
    hk = lead // group
    i = r % queries if PACK else r
    rows = (b * heads + h) * queries + i
    if SAFE:
        alive = alive & unsure(written, rows, alive, terms, DV, BLOCK_V)
    row = load_row(terms, b, h[:, None], i[:, None], alive[:, None])
    ours = (b, h, i.to(tl.int64), alive)
    q_tile = load(q, ours, D, BLOCK_D, True)

    state = empty(BLOCK)
    acc = tl.zeros((BLOCK, BLOCK_V), tl.float32)
    begin, whole, rest, end = key_span(row, terms.keys, TILE)
    begin, end = tl.maximum(begin, split * share), tl.minimum(end, (split + 1) * share)
    whole = tl.minimum(tl.maximum(whole, begin), end)
    rest = tl.minimum(tl.maximum(rest, whole), end)
    if SAFE:
        rest = whole
    else:
        state, acc = sweep(
            state, acc, q, ours, q_tile, k, v, hk, row, terms, drop, whole, rest, end, 0,
            D, DV, BLOCK_D, BLOCK_V, BLOCK, TILE, PRECISION, STATS, SAFE, PART, False,
        )  # fmt: skip
    state, acc = sweep(
        state, acc, q, ours, q_tile, k, v, hk, row, terms, drop, begin, end, whole, rest - whole,
        D, DV, BLOCK_D, BLOCK_V, BLOCK, TILE, PRECISION, STATS, SAFE, PART, True,
    )  # fmt: skip
    if partial is None:
        finish(state, acc, written, rows, alive, DV, BLOCK_V)
    else:
        keep(state, acc, partial, rows * splits + split, alive, DV, BLOCK_V)
