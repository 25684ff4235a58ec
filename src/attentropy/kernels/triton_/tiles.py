"""Load tiles of queries, keys and values, and multiply them.

Loads are padded to powers of two: with columns beyond the width always, with rows beyond the end
only under EDGE.
"""

import triton
import triton.language as tl


@triton.jit
def load(at, b, h, i, alive, WIDTH: tl.constexpr, BLOCK: tl.constexpr, EDGE: tl.constexpr):
    """Rows i [N] of head h as a tile [N, BLOCK], zero where not alive or beyond WIDTH."""
    d = tl.arange(0, BLOCK)
    ptr = at.ptr + b * at.b + (h * at.h + i * at.i)[:, None] + (d * at.j)[None, :]
    if EDGE and WIDTH < BLOCK:
        return tl.load(ptr, mask=alive[:, None] & (d < WIDTH)[None, :], other=0.0)
    if EDGE:
        return tl.load(ptr, mask=alive[:, None], other=0.0)
    if WIDTH < BLOCK:
        return tl.load(ptr, mask=(d < WIDTH)[None, :], other=0.0)
    return tl.load(ptr)


@triton.jit
def dot(a, b, PRECISE: tl.constexpr):
    """A product in float32: of float32 tiles by three tf32 products, which keeps their digits."""
    if PRECISE:
        return tl.dot(a, b, input_precision="tf32x3")
    return tl.dot(a, b)


@triton.jit
def tame(tile, wild, GUARD: tl.constexpr):
    """The tile without NaN and inf, and `wild` raised to 1 if there were any.

    A weight is zero where a key is hidden, but 0 * NaN is NaN. So tiles that may hide something
    are multiplied without such entries, and the kernel hands those to the rows that see them
    after its sweep, if `wild` says that there is need.
    """
    if GUARD:
        finite = tl.abs(tile.to(tl.float32)) < float("inf")
        wild = tl.maximum(wild, tl.max(tl.max(tl.where(finite, 0, 1), 1), 0))
        tile = tl.where(finite, tile, tl.zeros_like(tile))
    return tile, wild


@triton.jit
def poison(acc, seen, tile):
    """Add to the rows of acc the NaN and inf of the tile's rows that they have `seen`."""
    who = seen.to(tl.float16)
    up = ~(tile < float("inf"))
    down = ~(tile > float("-inf"))
    acc += tl.where(tl.dot(who, up.to(tl.float16)) > 0, float("inf"), 0.0)
    acc -= tl.where(tl.dot(who, down.to(tl.float16)) > 0, float("inf"), 0.0)
    return acc
