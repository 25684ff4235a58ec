"""Per row, what the gradient of its logits is made of.

With p the weights, dP = dO.V, and dH, dL, dC, dV the gradients of entropy, lse, sum p^2 and
varentropy V, and a = log p + H:

    ds = p * (dP - shift - dH log p + 2 dC p + dV (a^2 + 2 a))
       = p * (dP - shift' + log p (2 dV (1 + H) - dH) + (log p)^2 dV + 2 dC p)

    shift = sum dO O + dH H - dL + 2 dC sum p^2 + dV V,  shift' = shift - dV (H^2 + 2 H)
"""

import triton
import triton.language as tl

from attentropy.kernels.triton.device.logits import LN2, LOG2E
from attentropy.kernels.triton.device.state import FLOOR
from attentropy.kernels.triton.device.views import SLOPE_KINDS, SLOPE_ROWS

ROWS = tl.constexpr(SLOPE_ROWS)
STEP = tl.constexpr(SLOPE_ROWS * len(SLOPE_KINDS))
SHIFT, LEVEL, MAX, LINEAR, SQUARE, COLLISION = (
    tl.constexpr(SLOPE_ROWS * n) for n in range(len(SLOPE_KINDS))
)


@triton.jit
def coefficients(
    out, dout, slopes, base, m, dlse, dentropy, dvarentropy, dcollision, entropy, varentropy,
    collision, heads, queries, total,
    DV: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program: BLOCK rows out of the `total` rows of [B,H,Q]. Statistics are contiguous.

    Numbers are written in the units in which `slope_of` takes them, once for all tiles. `base` is
    lse where logits are raw, and else log l; `m` is None where it is not needed.
    """
    rows = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    alive = rows < total
    i, h, b = rows % queries, rows // queries % heads, rows // queries // heads
    into = slopes.ptr + (b * heads + h) * slopes.blocks * STEP + slope_steps(i)
    shift = tl.zeros((BLOCK,), tl.float32)
    if dout is not None:
        d = tl.arange(0, BLOCK_V)
        fits = alive[:, None] & (d < DV)[None, :]
        o = tl.load(out + rows[:, None] * DV + d[None, :], mask=fits, other=0.0)
        at = dout
        ptr = at.ptr + (b * at.b + h * at.h + i * at.i)[:, None] + (d * at.j)[None, :]
        do = tl.load(ptr, mask=fits, other=0.0)
        shift += tl.sum(o.to(tl.float32) * do.to(tl.float32), 1)
    linear = tl.zeros((BLOCK,), tl.float32)
    if dentropy is not None:
        dh = tl.load(dentropy + rows, mask=alive, other=0.0)
        shift += dh * tl.load(entropy + rows, mask=alive, other=0.0)
        linear -= dh
    if dvarentropy is not None:
        dv = tl.load(dvarentropy + rows, mask=alive, other=0.0)
        mean = tl.load(entropy + rows, mask=alive, other=0.0)
        spread = tl.load(varentropy + rows, mask=alive, other=0.0)
        shift += dv * (spread - mean * (mean + 2))
        linear += 2 * dv * (1 + mean)
        tl.store(into + SQUARE, dv * (LN2 * LN2), mask=alive)
    if slopes.linear is not None:
        tl.store(into + LINEAR, linear * LN2, mask=alive)
    if dlse is not None:
        shift -= tl.load(dlse + rows, mask=alive, other=0.0)
    if dcollision is not None:
        dc = 2 * tl.load(dcollision + rows, mask=alive, other=0.0)
        shift += dc * tl.load(collision + rows, mask=alive, other=0.0)
        tl.store(into + COLLISION, dc, mask=alive)
    tl.store(into + SHIFT, shift, mask=alive)
    level = tl.load(base + rows, mask=alive, other=0.0) * LOG2E
    tl.store(into + LEVEL, level, mask=alive)
    if m is not None:
        tl.store(into + MAX, tl.load(m + rows, mask=alive, other=0.0), mask=alive)


@triton.jit
def slope_steps(i):
    """From the first row of a head to row i, as `Slopes` has them."""
    return i // ROWS * STEP + i % ROWS


@triton.jit
def fetch(ptr, alive, EDGE: tl.constexpr):
    """What stands at ptr; under EDGE zero where not alive."""
    if EDGE:
        return tl.load(ptr, mask=alive, other=0.0)
    return tl.load(ptr)


@triton.jit
def load_slopes(slopes, lane, first, i, alive, terms, EDGE: tl.constexpr):
    """The coefficients of rows first + i of head `lane` of all, shaped as i.

    `first` is a multiple of ROWS. A dead row, under EDGE, gets zeros.
    """
    at = slopes.ptr + (lane * slopes.blocks + first // ROWS) * STEP + slope_steps(i)
    shift = fetch(at + SHIFT, alive, EDGE)
    level = fetch(at + LEVEL, alive, EDGE)
    m = tl.zeros_like(shift)
    if terms.raw is None:
        m = fetch(at + MAX, alive, EDGE)
    linear = tl.zeros_like(shift)
    if slopes.linear is not None:
        linear = fetch(at + LINEAR, alive, EDGE)
    square = tl.zeros_like(shift)
    if slopes.square is not None:
        square = fetch(at + SQUARE, alive, EDGE)
    dc = tl.zeros_like(shift)
    if slopes.collision is not None:
        dc = fetch(at + COLLISION, alive, EDGE)
    return m, level, shift, linear, square, dc


@triton.jit
def slope_of(
    s, dp, seen, unit, row_slopes, slopes, terms, GUARD: tl.constexpr, CLAMP: tl.constexpr
):
    """The weights p of a tile of logits s, and the gradient of the logits.

    `unit` turns raw logits to units of log 2. Without CLAMP a logit of -inf gives NaN, for the
    second launch to mend.
    """
    m, level, shift, linear, square, dc = row_slopes
    z = s * unit - level if terms.raw is not None else (s - m) * LOG2E - level
    p = tl.exp2(z)
    if CLAMP:
        z = tl.maximum(z, FLOOR)
    inner = dp - shift
    if slopes.square is not None:
        inner += z * (square * z + linear)
    elif slopes.linear is not None:
        inner += z * linear
    if slopes.collision is not None:
        inner += dc * p
    ds = p * inner
    if GUARD:
        p = tl.where(seen, p, 0.0)
        ds = tl.where(seen, ds, 0.0)
    return p, ds
