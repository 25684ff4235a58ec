"""The forward pass: one sweep over the keys, which carries the row state and the output."""

import triton
import triton.language as tl

from attentropy.kernels.triton.device.dropout import stays
from attentropy.kernels.triton.device.logits import HIDDEN, LOG2E, final, size_of
from attentropy.kernels.triton.device.state import (
    ARGMAX,
    COLLISION,
    ENTROPY,
    NOT_FINITE,
    NOWHERE,
    OCTET,
    SLOTS,
    SPREAD_OUT,
    VARENTROPY,
    absorb,
    absorb_safely,
    blind,
    empty,
    loudest,
    read,
    settle,
)
from attentropy.kernels.triton.device.tiles import (
    add_seen,
    dot_pair,
    load,
    load_next_pair,
    load_pair,
    narrow,
    places_pair,
    product,
    scores,
    store_pair,
    times,
    walk,
    zero_pair,
)
from attentropy.kernels.triton.device.visibility import key_span, load_row


@triton.jit
def sweep(
    state, acc, q, ours, q_tile, k, v, hk, row, unit, terms, drop,
    begin, end, skip, gap,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
    TAIL_D: tl.constexpr, TAIL_V: tl.constexpr,
    BLOCK: tl.constexpr, TILE: tl.constexpr, PRECISION: tl.constexpr, WANTED: tl.constexpr,
    SAFE: tl.constexpr, PART: tl.constexpr, EDGE: tl.constexpr,
):  # fmt: skip
    """Absorb the keys from `begin` to `end` tile by tile, but for a `gap` of them at `skip`.

    Without EDGE there is no gap, scales are positive, and pointers move on from tile to tile.
    """
    HIDES: tl.constexpr = EDGE or (terms.mask is not None) or (terms.bias is not None)
    k_at, k_steps = walk(k, row[0], hk, begin, TILE, BLOCK_D)
    v_at, v_steps = walk(v, row[0], hk, begin, TILE, BLOCK_V)
    for step in range(begin, end - gap, TILE):
        first = step + tl.where(step >= skip, gap, 0) if EDGE else step
        key = first + tl.arange(0, TILE)
        inside = key < terms.keys
        j = key[None, :]
        theirs = (row[0], hk, key.to(tl.int64), inside)
        if PART:
            x = product(q, ours, k, theirs, BLOCK, TILE, D, PART, PRECISION)
        else:
            k_tile = load_next_pair(k, theirs, k_at, k_steps, D, BLOCK_D, TAIL_D, EDGE)
            x = scores(q_tile, k_tile, PRECISION)
        if EDGE and not SAFE:
            x *= sign_of(row, terms)
        s, seen, _ = final(x, row, j, terms, EDGE)
        if SAFE:
            s = s * size_of(row, terms)
            p, alpha, state = absorb_safely(state, tl.where(seen, s, HIDDEN), seen, j)
        else:
            p, alpha, state = absorb(state, s, seen, first, unit, WANTED, HIDES)
        if drop is not None:
            p = tl.where(stays(drop, row[0], row[1], row[2], first, TILE), p, 0.0)
        if SAFE:
            p = narrow(p, v.ptr.dtype.element_ty)
            total = acc[0] * alpha[:, None]
            total = add_seen(total, p, seen, v, row[0], hk, first, terms.keys, DV, BLOCK_V)
            acc = (total, None)
        else:
            v_tile = load_next_pair(v, theirs, v_at, v_steps, DV, BLOCK_V, TAIL_V, EDGE)
            p = narrow(p, v.ptr.dtype.element_ty)
            acc = dot_pair(p, v_tile, PRECISION, times(acc, alpha))
        if not EDGE:
            k_at += TILE * k.i
            v_at += TILE * v.i
    return state, acc


@triton.jit
def sign_of(row, terms):
    """The sign of the scale where logits are raw: it goes to the scores, so that maxima agree.

    0 for a scale of 0, which makes all scores equal, and NaN for NaN.
    """
    if terms.raw is None:
        sign = tl.full((1, 1), 1.0, tl.float32)
    else:
        sign = tl.where(row[4] < 0, -1.0, tl.where(row[4] > 0, 1.0, row[4]))
    return sign


@triton.jit
def forward_of(row):
    """1 for rows whose scale is positive, [M,1]; a dead row counts as such."""
    return tl.where(tl.where(row[3], row[4], 1.0) > 0, 1, 0)


@triton.jit
def loudest_key(
    slots, q, ours, k, hk, row, terms,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The lowest key that has the largest logit, or -1.

    A slot that holds the maximum says in which tile it is; the logits of the keys of that tile that
    share the slot, two of every octet, are computed once more. Several slots hold it only where
    logits are equal. The queries are read again: in the loop they would take registers.
    """
    m, best, since = slots[0], slots[5], slots[6]
    b, h, i, alive = ours
    q_tile = load(q, (b, h, i, alive & (m > HIDDEN)), D, BLOCK_D, True)
    q_tile = q_tile.to(tl.float32)
    PAIR: tl.constexpr = OCTET // SLOTS
    start = since + PAIR * tl.arange(0, SLOTS)[None, :]
    tied = (best == m[:, None]) & (since >= 0)
    top = tl.full((BLOCK,), NOWHERE, tl.int32)
    for _turn in range(0, tl.max(tl.sum(tied.to(tl.int32), 1), 0)):
        lowest = tl.min(tl.where(tied, start, NOWHERE), 1)
        tied = tied & (start != lowest[:, None])
        found = lowest < NOWHERE
        value, place = tl.full((BLOCK,), HIDDEN, tl.float32), tl.full((BLOCK,), NOWHERE, tl.int32)
        for step in range(0, TILE // SLOTS):
            key = tl.where(found, lowest, 0) + step + step // PAIR * (OCTET - PAIR)
            asked = found & (key < terms.keys)
            theirs = (row[0], hk, key.to(tl.int64), asked)
            x = tl.sum(q_tile * load(k, theirs, D, BLOCK_D, True).to(tl.float32), 1)
            x = x[:, None] * sign_of(row, terms)
            s = tl.max(final(x, row, key[:, None], terms, True)[0], 1)
            higher = (s > value) & asked
            value, place = tl.where(higher, s, value), tl.where(higher, key, place)
        top = tl.minimum(top, place)
    return tl.where(top < NOWHERE, top, -1)


@triton.jit
def finish(
    state, acc, written, unsure, rows, alive,
    DV: tl.constexpr, BLOCK_V: tl.constexpr, WANTED: tl.constexpr,
):  # fmt: skip
    """Read the state and store output and statistics of `rows` of [B,H,Q], as far as WANTED.

    `unsure` marks rows that are to be done again, as bits: NOT_FINITE and SPREAD_OUT.
    """
    tl.store(written.max_logit + rows, loudest(state), mask=alive)
    inverse, log_l, lse, entropy, spread, collision, lost = read(state)
    tl.store(written.log_l + rows, log_l, mask=alive)
    tl.store(written.lse + rows, lse, mask=alive)
    bad = log_l != log_l
    if ENTROPY & WANTED:
        tl.store(written.entropy + rows, entropy, mask=alive)
        bad = bad | (entropy != entropy)
    if VARENTROPY & WANTED:
        tl.store(written.varentropy + rows, spread, mask=alive)
        bad = bad | (spread != spread)
    if COLLISION & WANTED:
        tl.store(written.collision + rows, collision, mask=alive)
    if ARGMAX & WANTED:
        tl.store(written.argmax + rows, state[5].to(tl.int64), mask=alive)
    bad = bad | store_pair(written.out, times(acc, inverse[:, None]), rows, alive, DV)
    marks = tl.where(bad, NOT_FINITE, 0)
    if VARENTROPY & WANTED:
        marks = tl.where(lost & ~bad, SPREAD_OUT, marks)
    tl.store(unsure + rows, marks.to(tl.int8), mask=alive)


@triton.jit
def keep(
    state, acc, partial, place, alive,
    DV: tl.constexpr, BLOCK_V: tl.constexpr, WANTED: tl.constexpr,
):  # fmt: skip
    """Store the states of one share of the keys."""
    m, l, t, u, c, top = state
    tl.store(partial.m + place, m, mask=alive)
    tl.store(partial.l + place, l, mask=alive)
    tl.store(partial.t + place, t, mask=alive)
    tl.store(partial.u + place, u, mask=alive)
    tl.store(partial.c + place, c, mask=alive)
    tl.store(partial.top + place, top, mask=alive)
    d = tl.arange(0, BLOCK_V)
    tl.store(partial.acc + place[:, None] * DV + d[None, :], acc, mask=alive[:, None] & (d < DV))


@triton.jit
def forward(
    q, k, v, terms, drop, written, unsure, partial, heads, key_heads, share, splits,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
    TAIL_D: tl.constexpr, TAIL_V: tl.constexpr,
    PACK: tl.constexpr, PRECISION: tl.constexpr, WANTED: tl.constexpr, SAFE: tl.constexpr,
    BLOCK: tl.constexpr, TILE: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """One program: BLOCK rows of one head (PACK: of all query heads of one key head).

    With `partial`, one `share` of the keys, whose state is stored for `decode.join` to merge;
    else all keys, and the results. SAFE does rows that are `unsure` again, see `tiles.add_seen`.
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
        alive = alive & ((tl.load(unsure + rows, mask=alive, other=0) & NOT_FINITE) > 0)
    row = load_row(terms, b, h[:, None], i[:, None], alive[:, None])
    ours = (b, h, i.to(tl.int64), alive)
    q_tile = load_pair(places_pair(q, ours, BLOCK_D, TAIL_D), alive, D, True)
    size = size_of(row, terms)

    acc = zero_pair(BLOCK, BLOCK_V, TAIL_V)
    begin, whole, rest, end = key_span(row, terms.keys, TILE)
    begin, end = tl.maximum(begin, split * share), tl.minimum(end, (split + 1) * share)
    whole = tl.minimum(tl.maximum(whole, begin), end)
    rest = tl.minimum(tl.maximum(rest, whole), end)
    if not SAFE:
        if terms.raw is not None:
            rest = tl.where(tl.min(tl.min(forward_of(row), 1), 0) > 0, rest, whole)
        size = tl.abs(size)
    # a scale of 0 makes all scores 0, in any unit; 0 * -inf would be NaN where a key is hidden
    unit = tl.where(size == 0, 1.0, size) * LOG2E
    if SAFE:
        rest = whole
        state = blind(BLOCK)
    else:
        state = empty(BLOCK, WANTED)
        state, acc = sweep(
            state, acc, q, ours, q_tile, k, v, hk, row, unit, terms, drop,
            whole, rest, end, 0, D, DV, BLOCK_D, BLOCK_V, TAIL_D, TAIL_V,
            BLOCK, TILE, PRECISION, WANTED, SAFE, PART, False,
        )  # fmt: skip
    state, acc = sweep(
        state, acc, q, ours, q_tile, k, v, hk, row, unit, terms, drop,
        begin, end, whole, rest - whole, D, DV, BLOCK_D, BLOCK_V, TAIL_D, TAIL_V,
        BLOCK, TILE, PRECISION, WANTED, SAFE, PART, True,
    )  # fmt: skip
    if not SAFE:
        top = tl.full((BLOCK,), -1, tl.int32)
        if ARGMAX & WANTED:
            top = loudest_key(
                state, q, ours, k, hk, row, terms,
                D, BLOCK_D if TAIL_D == 0 else 2 * BLOCK_D, BLOCK, TILE,
            )  # fmt: skip
        size = tl.sum(size + tl.zeros((BLOCK, 1), tl.float32), 1)
        (m, l, t, u, c), peak = settle(state, size, unit)
        state, acc = (m, l, t, u, c, top), times(acc, 1 / peak[:, None])
    if drop is not None:
        acc = times(acc, drop.gain)
    if partial is None:
        finish(state, acc, written, unsure, rows, alive, DV, BLOCK_V, WANTED)
    else:
        keep(state, acc[0], partial, rows * splits + split, alive, DV, BLOCK_V, WANTED)
