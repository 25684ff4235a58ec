"""Load tiles of queries, keys and values, and multiply them.

Loads are padded to powers of two: with columns beyond the width always, with rows beyond the end
only under EDGE. Rows are a tuple (b, h, i [N], alive [N]).

A width such as 96 is BLOCK columns and a TAIL of fewer, so that no product is with zeros: a pair of
tiles, of pointers, or of accumulators, whose second is None without a TAIL.
"""

import triton
import triton.language as tl

from attentropy.kernels.triton.mode import interpreting

# the interpreter multiplies the bits of bfloat16 as integers, and truncates to it
INTERPRETED = tl.constexpr(interpreting())


@triton.jit
def load(at, rows, WIDTH: tl.constexpr, BLOCK: tl.constexpr, EDGE: tl.constexpr):
    """The rows as a tile [N, BLOCK], zero where not alive or beyond WIDTH."""
    d = tl.arange(0, BLOCK)
    alive = rows[3]
    return load_at(places(at, rows, d), alive, WIDTH, EDGE)


@triton.jit
def load_at(ptr, alive, WIDTH: tl.constexpr, EDGE: tl.constexpr):
    """What stands at the places ptr [N, BLOCK], zero where not alive or beyond WIDTH."""
    BLOCK: tl.constexpr = ptr.shape[1]
    fits = (tl.arange(0, BLOCK) < WIDTH)[None, :]
    if EDGE and WIDTH < BLOCK:
        return tl.load(ptr, mask=alive[:, None] & fits, other=0.0)
    if EDGE:
        return tl.load(ptr, mask=alive[:, None], other=0.0)
    if WIDTH < BLOCK:
        return tl.load(ptr, mask=fits, other=0.0)
    return tl.load(ptr)


@triton.jit
def places(at, rows, d):
    """Where columns d of the rows stand."""
    b, h, i, _ = rows
    return at.ptr + b * at.b + (h * at.h + i * at.i)[:, None] + (d * at.j)[None, :]


@triton.jit
def walk(at, b, h, first, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """One pointer to row `first`, and from there the steps [ROWS, BLOCK] to a tile of rows.

    Tile after tile only the pointer moves on, by ROWS * at.i: that takes fewer registers than
    pointers to all rows. `Problem.heads` sees to it that steps have 32 bits.
    """
    start = at.ptr + b * at.b + h * at.h + first.to(tl.int64) * at.i
    steps = (tl.arange(0, ROWS) * at.i)[:, None] + (tl.arange(0, BLOCK) * at.j)[None, :]
    return start, steps


@triton.jit
def load_next(at, rows, start, steps, WIDTH: tl.constexpr, BLOCK: tl.constexpr, EDGE: tl.constexpr):
    """The rows as a tile: at the `steps` from `start` that `walk` gave, or one by one if EDGE."""
    if EDGE:
        return load(at, rows, WIDTH, BLOCK, True)
    return load_at(start + steps, rows[3], WIDTH, False)


@triton.jit
def places_pair(at, rows, BLOCK: tl.constexpr, TAIL: tl.constexpr):
    """Where the first BLOCK columns of the rows stand, and the TAIL after them."""
    first = places(at, rows, tl.arange(0, BLOCK))
    return first, places(at, rows, BLOCK + tl.arange(0, TAIL)) if TAIL else None


@triton.jit
def load_pair(ptr, alive, WIDTH: tl.constexpr, EDGE: tl.constexpr):
    """What stands at a pair of places."""
    first = load_at(ptr[0], alive, WIDTH, EDGE)
    BEYOND: tl.constexpr = WIDTH - ptr[0].shape[1]
    return first, load_at(ptr[1], alive, BEYOND, EDGE) if ptr[1] is not None else None


@triton.jit
def load_next_pair(
    at, rows, start, steps, WIDTH: tl.constexpr, BLOCK: tl.constexpr, TAIL: tl.constexpr,
    EDGE: tl.constexpr,
):  # fmt: skip
    """As `load_next`, a pair of tiles."""
    first = load_next(at, rows, start, steps, WIDTH, BLOCK, EDGE)
    return first, load_tail(at, rows, start, WIDTH, BLOCK, TAIL, EDGE) if TAIL else None


@triton.jit
def load_tail(
    at, rows, start, WIDTH: tl.constexpr, BLOCK: tl.constexpr, TAIL: tl.constexpr,
    EDGE: tl.constexpr,
):  # fmt: skip
    """The second tile of `load_next_pair`."""
    d = BLOCK + tl.arange(0, TAIL)
    if EDGE:
        return load_at(places(at, rows, d), rows[3], WIDTH - BLOCK, True)
    n = tl.arange(0, rows[3].shape[0])
    ptr = start + ((n * at.i)[:, None] + (d * at.j)[None, :])
    return load_at(ptr, rows[3], WIDTH - BLOCK, False)


@triton.jit
def moved(ptr, step):
    """A pair of pointers that moves on by `step`."""
    return ptr[0] + step, ptr[1] + step if ptr[1] is not None else None


@triton.jit
def zero_pair(ROWS: tl.constexpr, BLOCK: tl.constexpr, TAIL: tl.constexpr):
    """A pair of accumulators."""
    first = tl.zeros((ROWS, BLOCK), tl.float32)
    return first, tl.zeros((ROWS, TAIL), tl.float32) if TAIL else None


@triton.jit
def times(pair, factor):
    """A pair of tiles times a factor."""
    return pair[0] * factor, pair[1] * factor if pair[1] is not None else None


@triton.jit
def scores(one, other, PRECISION: tl.constexpr):
    """The products of the rows of two pairs of tiles."""
    x = dot(one[0], tl.trans(other[0]), PRECISION)
    if one[1] is not None:
        x = dot(one[1], tl.trans(other[1]), PRECISION, x)
    return x


@triton.jit
def dot_pair(a, pair, PRECISION: tl.constexpr, acc):
    """acc + a @ a pair of tiles, as a pair."""
    first = dot(a, pair[0], PRECISION, acc[0])
    return first, dot(a, pair[1], PRECISION, acc[1]) if pair[1] is not None else None


@triton.jit
def store_pair(into, pair, rows, alive, WIDTH: tl.constexpr):
    """Store a pair of tiles to contiguous rows, narrowed; which rows are not finite."""
    bad = store_columns(into, pair[0], rows, alive, 0, WIDTH)
    if pair[1] is not None:
        bad = bad | store_columns(into, pair[1], rows, alive, pair[0].shape[1], WIDTH)
    return bad


@triton.jit
def store_columns(into, x, rows, alive, FIRST: tl.constexpr, WIDTH: tl.constexpr):
    """Store columns from FIRST on to contiguous rows, narrowed; which rows are not finite."""
    x = narrow(x, into.dtype.element_ty)
    d = FIRST + tl.arange(0, x.shape[1])
    kept = alive[:, None] & (d < WIDTH)[None, :]
    tl.store(into + rows[:, None] * WIDTH + d[None, :], x, mask=kept)
    return spoiled(x.to(tl.float32))


@triton.jit
def product(
    one, ours, other, theirs, M: tl.constexpr, N: tl.constexpr, WIDTH: tl.constexpr,
    PART: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """M rows by N rows, PART columns after PART columns.

    A warp holds all that it multiplies at once in registers: wide tiles do not fit there.
    """
    s = tl.zeros((M, N), tl.float32)
    # a number of turns that the compiler does not know keeps it from unrolling them
    for start in range(0, tl.max(tl.where(ours[3], WIDTH, 0), 0), PART):
        d = start + tl.arange(0, PART)
        fits = (d < WIDTH)[None, :]
        a = tl.load(places(one, ours, d), mask=ours[3][:, None] & fits, other=0.0)
        b = tl.load(places(other, theirs, d), mask=theirs[3][:, None] & fits, other=0.0)
        s += dot(a, tl.trans(b), PRECISION)
    return s


@triton.jit
def dot(a, b, PRECISION: tl.constexpr, acc=None):
    """acc + a @ b in float32; of float32 tiles without loss of digits: "tf32x3" or "ieee"."""
    if INTERPRETED:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), acc)
    if PRECISION is None:
        return tl.dot(a, b, acc)
    if PRECISION == "ieee":
        return tl.dot(a.to(tl.float32), b.to(tl.float32), acc, input_precision="ieee")
    return tl.dot(a, b, acc, input_precision=PRECISION)


@triton.jit
def narrow(x, dtype: tl.constexpr):
    """Float32 rounded to the nearest of `dtype`, as the hardware does."""
    if INTERPRETED and dtype == tl.bfloat16:
        bits = x.to(tl.int32, bitcast=True)
        nearest = (bits + 0x7FFF + ((bits >> 16) & 1)).to(tl.float32, bitcast=True)
        x = tl.where(tl.abs(x) < float("inf"), nearest, x)
    return x.to(dtype)


@triton.jit
def add_seen(
    acc, a, seen, at, b, h, first, total, WIDTH: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """acc + a @ (the rows from `first` of head h), where hidden entries of a meet nothing.

    a is zero where a key is hidden, but 0 * NaN is NaN: the plain product spoils rows that did not
    see the NaN. They show by not being finite, and are done again with this, which takes one row
    after the other and adds it to those that see it.
    """
    n = tl.arange(0, a.shape[1])[None, :]
    d = tl.arange(0, BLOCK)
    for one in range(0, a.shape[1]):
        place = first + one
        ptr = at.ptr + b * at.b + h * at.h + place.to(tl.int64) * at.i + d * at.j
        entry = tl.load(ptr, mask=d < tl.where(place < total, WIDTH, 0), other=0.0).to(tl.float32)
        weight = tl.sum(tl.where(n == one, a.to(tl.float32), 0.0), 1)
        sees = tl.max(tl.where((n == one) & seen, 1, 0), 1) > 0
        acc += tl.where(sees[:, None], weight[:, None] * entry[None, :], 0.0)
    return acc


@triton.jit
def spoiled(x):
    """Which rows of a tile hold NaN or inf."""
    return tl.max(tl.where(tl.abs(x) < float("inf"), 0, 1), 1) > 0
