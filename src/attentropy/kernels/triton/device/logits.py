"""Final logits of a tile, written once for the forward and the backward pass.

    s = softcap * tanh(scale * x / softcap) + bias + relative[clip(d)] - slope * |d|

with d = j - (i + K - Q). The shapes of the row and of the keys j decide whether queries are the
rows or the columns of the tile.

Where nothing but the scale acts on a score, logits stay raw: r = x, to be multiplied by the scale
of the row. `terms.raw` says so, and `size_of` gives what r is multiplied by.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
HIDDEN = tl.constexpr(float("-inf"))


@triton.jit
def exp(z):
    """e^z, by the 2^x of the hardware."""
    return tl.exp2(z * LOG2E)


@triton.jit
def tanh(y):
    """tanh to float32 rounding: its series below 1/4, where 1 - e^-2|y| would cancel."""
    u = y * y
    series = y + y * u * (-1 / 3 + u * (2 / 15 + u * (-17 / 315 + u * (62 / 2835))))
    fall = exp(-2 * tl.abs(y))
    ratio = (1 - fall) / (1 + fall)
    return tl.where(u < 0.0625, series, tl.where(y < 0, -ratio, ratio))


@triton.jit
def size_of(row, terms):
    """What logits of `final` are multiplied by: the scale of the row if they are raw, else 1."""
    size = row[4] if terms.raw is not None else tl.full((1, 1), 1.0, tl.float32)
    return size  # noqa: RET504 Triton takes no choice between types in a return


@triton.jit
def final(x, row, j, terms, EDGE: tl.constexpr):
    """The logits s (-inf where hidden), where they are seen, and ds / d(scale * x).

    Without EDGE every row of the tile sees every key, as far as the row intervals go.
    """
    b, h, i, alive, scale, lo, hi, slope = row
    damp = 1.0
    if terms.softcap is not None:
        th = tanh(x * (scale / terms.softcap))
        s = th * terms.softcap
        damp = 1 - th * th
    elif terms.raw is not None:
        s = x
    else:
        s = x * scale
    if EDGE:
        seen = j < hi
        if terms.lo is not None:
            seen = seen & (j >= lo)
    else:
        seen = alive & (j >= 0)
    if terms.mask is not None:
        seen = seen & (tl.load(entry(terms.mask, b, h, i, j), mask=seen, other=0) != 0)
    if terms.bias is not None:
        at = entry(terms.bias, b, h, i, j)
        bias = tl.load(at, mask=seen, other=HIDDEN).to(tl.float32)
        seen = seen & (bias != HIDDEN)
        s += tl.where(seen, bias, 0.0)
    if (terms.relative is not None) or (terms.slopes is not None):
        d = j - (i + terms.keys - terms.queries)
        s -= slope * tl.abs(d)
        if terms.relative is not None:
            s += tl.load(relative_at(terms.relative, h, d)).to(tl.float32)
    if EDGE or (terms.mask is not None) or (terms.bias is not None):
        s = tl.where(seen, s, HIDDEN)
    return s, seen, damp


@triton.jit
def entry(at, b, h, i, j):
    """Where a [B,H,Q,K] tensor has its entries: pointers of rows, then steps of 32 bits."""
    return at.ptr + (b * at.b + h * at.h + i.to(tl.int64) * at.i) + j * at.j


@triton.jit
def relative_at(table, h, d):
    """Where the relative bias of distance d stands."""
    reach = table.reach
    return table.ptr + h * table.h + tl.minimum(tl.maximum(d, -reach), reach) + reach
