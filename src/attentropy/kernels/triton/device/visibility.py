"""Which rows a program holds, which keys they may see, and which tiles need no asking.

A row is the tuple (b, h, i, alive, scale, lo, hi, slope), whose vectors are shaped [M,1] when
queries are rows of the tile and [1,M] when they are its columns.
"""

import triton
import triton.language as tl

SCAN = tl.constexpr(256)


@triton.jit
def interval(terms, b, h, i, alive):
    """The first key that each query may see, and one past the last; none for a dead row."""
    lo = tl.zeros_like(i)
    if terms.lo is not None:
        at = terms.lo
        lo = tl.load(at.ptr + b * at.b + h * at.h + i * at.i, mask=alive, other=0)
    if terms.hi is not None:
        at = terms.hi
        hi = tl.load(at.ptr + b * at.b + h * at.h + i * at.i, mask=alive, other=0)
    else:
        hi = tl.where(alive, terms.keys, 0)
    return lo, hi


@triton.jit
def load_row(terms, b, h, i, alive):
    """The row tuple of queries i; a dead row sees nothing."""
    at = terms.scale
    scale = tl.load(at.ptr + b * at.b + h * at.h + i * at.i, mask=alive, other=0.0).to(tl.float32)
    lo, hi = interval(terms, b, h, i, alive)
    slope = tl.zeros_like(scale)
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
def query_span(terms, b, h, first, TILE: tl.constexpr, BLOCK: tl.constexpr):
    """Queries from `begin` to `end` see some key of the BLOCK from `first`, `whole` to `rest` all.

    As `key_span`, with the rows read from memory, since any query may see any stretch of keys.
    """
    queries = terms.queries
    last = tl.minimum(first + BLOCK, terms.keys)
    ragged = first + BLOCK > terms.keys
    begin, end = first * 0, first * 0 + queries
    whole, rest = begin, tl.where(ragged, begin, end)
    if (terms.lo is not None) or (terms.hi is not None):
        begin, end, whole, rest = end, begin, end, end
        for start in range(0, queries, SCAN):
            i = start + tl.arange(0, SCAN)
            alive = i < queries
            lo, hi = interval(terms, b, h, i, alive)
            touched = (lo < last) & (hi > first) & alive
            covered = (lo <= first) & (hi >= first + BLOCK) & alive
            begin = tl.minimum(begin, tl.min(tl.where(touched, i, queries), 0))
            end = tl.maximum(end, tl.max(tl.where(touched, i + 1, 0), 0))
            whole = tl.minimum(whole, tl.min(tl.where(covered, i, queries), 0))
        for start in range(0, queries, SCAN):
            i = start + tl.arange(0, SCAN)
            alive = i < queries
            lo, hi = interval(terms, b, h, i, alive)
            broken = ((lo > first) | (hi < first + BLOCK)) & alive & (i >= whole)
            rest = tl.minimum(rest, tl.min(tl.where(broken, i, queries), 0))
        begin, rest = begin // TILE * TILE, tl.minimum(rest, end)
        whole = tl.cdiv(whole, TILE) * TILE
    whole = tl.minimum(tl.maximum(whole, begin), tl.cdiv(end, TILE) * TILE)
    return begin, whole, tl.maximum(rest // TILE * TILE, whole), end
