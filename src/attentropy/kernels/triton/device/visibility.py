"""Which rows a program holds, which keys they may see, and which tiles need no asking.

A row is the tuple (b, h, i, alive, scale, lo, hi, slope), whose vectors are shaped [M,1] when
queries are rows of the tile and [1,M] when they are its columns.
"""

import triton
import triton.language as tl

SCAN = tl.constexpr(256)
GRAIN = tl.constexpr(16)


@triton.jit
def along(at, b, h, i):
    """Where a [B,H,Q] tensor has the entries of queries i; one place where they share one."""
    ptr = at.ptr + b * at.b
    if at.h is not None:
        ptr += h * at.h
    if at.i is not None:
        ptr += i * at.i
    return ptr


@triton.jit
def interval(terms, b, h, i, alive):
    """The first key that each query may see, and one past the last; none for a dead row."""
    lo = tl.zeros_like(i)
    if terms.lo is not None:
        lo = tl.load(along(terms.lo, b, h, i) + tl.zeros_like(i), mask=alive, other=0)
    if terms.hi is not None:
        hi = tl.load(along(terms.hi, b, h, i) + tl.zeros_like(i), mask=alive, other=0)
    else:
        hi = tl.where(alive, terms.keys, 0)
    return lo, hi


@triton.jit
def load_row(terms, b, h, i, alive):
    """The row tuple of queries i; a dead row sees nothing. A scale that all share is one number."""
    if (terms.scale.h is None) and (terms.scale.i is None):
        scale = tl.load(along(terms.scale, b, h, i)).to(tl.float32)
    else:
        at = along(terms.scale, b, h, i) + tl.zeros_like(i)
        scale = tl.load(at, mask=alive, other=0.0).to(tl.float32)
    lo, hi = interval(terms, b, h, i, alive)
    slope = tl.zeros_like(i).to(tl.float32)
    if terms.slopes is not None:
        slope = tl.load(terms.slopes + h + tl.zeros_like(i), mask=alive, other=0.0).to(tl.float32)
    return b, h, i, alive, scale, lo, hi, slope


@triton.jit
def key_span(row, keys, TILE: tl.constexpr):
    """Keys from `begin` to `end` are seen by some row, from `whole` to `rest` by all of them.

    All but `end` are multiples of TILE, and begin <= whole <= rest.
    """
    alive, lo, hi = row[3], row[5], row[6]
    blind = lo >= hi
    begin = tl.min(tl.min(tl.where(alive & ~blind, lo, keys), 1), 0) // TILE * TILE
    end = tl.max(tl.max(tl.where(alive & ~blind, hi, 0), 1), 0)
    whole = tl.cdiv(tl.max(tl.max(lo, 1), 0), TILE) * TILE
    rest = tl.min(tl.min(tl.where(alive, hi, keys), 1), 0) // TILE * TILE
    whole = tl.minimum(tl.maximum(whole, begin), tl.cdiv(end, TILE) * TILE)
    return begin, whole, tl.maximum(rest, whole), end


@triton.jit
def span_table(into, terms, heads):
    """One program: which queries see the keys of one GRAIN, four numbers in the order of `into`.

    Queries from `begin` to `end` see some key of the GRAIN, those from `whole` to `rest` all. Any
    query may see any stretch of keys, so that all are looked at, once for all programs that ask.
    """
    blocks = tl.cdiv(terms.keys, GRAIN)
    pid = tl.program_id(0)
    lane, first = pid // blocks, pid % blocks * GRAIN
    b, h = (lane // heads).to(tl.int64), (lane % heads).to(tl.int64)
    queries = terms.queries
    last = tl.minimum(first + GRAIN, terms.keys)
    end = first * 0
    begin, whole, rest = end + queries, end + queries, end + queries
    for start in range(0, queries, SCAN):
        i = start + tl.arange(0, SCAN)
        alive = i < queries
        lo, hi = interval(terms, b, h, i, alive)
        touched = (lo < last) & (hi > first) & alive
        covered = (lo <= first) & (hi >= first + GRAIN) & alive
        begin = tl.minimum(begin, tl.min(tl.where(touched, i, queries), 0))
        end = tl.maximum(end, tl.max(tl.where(touched, i + 1, 0), 0))
        whole = tl.minimum(whole, tl.min(tl.where(covered, i, queries), 0))
    for start in range(0, queries, SCAN):
        i = start + tl.arange(0, SCAN)
        alive = i < queries
        lo, hi = interval(terms, b, h, i, alive)
        broken = ((lo > first) | (hi < first + GRAIN)) & alive & (i >= whole)
        rest = tl.minimum(rest, tl.min(tl.where(broken, i, queries), 0))
    at = into + pid.to(tl.int64) * 4
    tl.store(at, begin)
    tl.store(at + 1, end)
    tl.store(at + 2, whole)
    tl.store(at + 3, rest)


@triton.jit
def query_span(terms, spans, b, h, first, TILE: tl.constexpr, BLOCK: tl.constexpr):
    """Queries from `begin` to `end` see some key of the BLOCK from `first`, `whole` to `rest` all.

    As `key_span`; `spans` is the table of `span_table` for every GRAIN keys, or None without
    intervals.
    """
    queries = terms.queries
    ragged = first + BLOCK > terms.keys
    begin, end = first * 0, first * 0 + queries
    whole, rest = begin, tl.where(ragged, begin, end)
    if spans is not None:
        grain = first // GRAIN + tl.arange(0, BLOCK // GRAIN)
        inside = grain * GRAIN < terms.keys
        at = spans.ptr + b * spans.b + h * spans.h + grain * 4
        begin = tl.min(tl.load(at, mask=inside, other=2147483647), 0)
        end = tl.max(tl.load(at + 1, mask=inside, other=0), 0)
        whole = tl.max(tl.load(at + 2, mask=inside, other=0), 0)
        rest = tl.min(tl.load(at + 3, mask=inside, other=2147483647), 0)
        rest = tl.minimum(tl.where(ragged, whole, rest), end)
        begin, whole = tl.minimum(begin, end) // TILE * TILE, tl.cdiv(whole, TILE) * TILE
    whole = tl.minimum(tl.maximum(whole, begin), tl.cdiv(end, TILE) * TILE)
    return begin, whole, tl.maximum(rest // TILE * TILE, whole), end
