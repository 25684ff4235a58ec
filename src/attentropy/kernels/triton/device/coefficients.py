"""Per row, what the gradient of its logits is made of.

With p the weights, dP = dO.V, and dH, dL, dC the gradients of entropy, lse and sum p^2:

    ds = p * (dP - shift - dH * log p + 2 * dC * p)
    shift = sum dO * O + dH * H - dL + 2 * dC * sum p^2
"""

import triton
import triton.language as tl

from attentropy.kernels.triton.device.logits import exp
from attentropy.kernels.triton.device.state import FLOOR


@triton.jit
def coefficients(
    out, dout, slopes, dlse, entropy, collision, heads, queries, total,
    DV: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program: BLOCK rows out of the `total` rows of [B,H,Q]. Statistics are contiguous."""
    rows = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    alive = rows < total
    i, h, b = rows % queries, rows // queries % heads, rows // queries // heads
    shift = tl.zeros((BLOCK,), tl.float32)
    if dout is not None:
        d = tl.arange(0, BLOCK_V)
        fits = alive[:, None] & (d < DV)[None, :]
        o = tl.load(out + rows[:, None] * DV + d[None, :], mask=fits, other=0.0)
        at = dout
        ptr = at.ptr + (b * at.b + h * at.h + i * at.i)[:, None] + (d * at.j)[None, :]
        do = tl.load(ptr, mask=fits, other=0.0)
        shift += tl.sum(o.to(tl.float32) * do.to(tl.float32), 1)
    if slopes.entropy is not None:
        dh = tl.load(slopes.entropy + rows, mask=alive, other=0.0)
        shift += dh * tl.load(entropy + rows, mask=alive, other=0.0)
    if dlse is not None:
        shift -= tl.load(dlse + rows, mask=alive, other=0.0)
    if slopes.collision is not None:
        dc = tl.load(slopes.collision + rows, mask=alive, other=0.0)
        shift += 2 * dc * tl.load(collision + rows, mask=alive, other=0.0)
    tl.store(slopes.shift + rows, shift, mask=alive)


@triton.jit
def load_slopes(slopes, rows, alive):
    """The coefficients of rows, shaped as `rows`; a dead row gets zeros."""
    m = tl.load(slopes.m + rows, mask=alive, other=0.0)
    log_l = tl.load(slopes.log_l + rows, mask=alive, other=0.0)
    shift = tl.load(slopes.shift + rows, mask=alive, other=0.0)
    dh = tl.zeros_like(shift)
    if slopes.entropy is not None:
        dh = tl.load(slopes.entropy + rows, mask=alive, other=0.0)
    dc = tl.zeros_like(shift)
    if slopes.collision is not None:
        dc = tl.load(slopes.collision + rows, mask=alive, other=0.0) * 2
    return m, log_l, shift, dh, dc


@triton.jit
def slope_of(s, dp, seen, row_slopes, slopes, GUARD: tl.constexpr, CLAMP: tl.constexpr):
    """The weights p of a tile of logits s, and the gradient of the logits.

    Without CLAMP a logit of -inf gives NaN, for the second launch to mend.
    """
    m, log_l, shift, dh, dc = row_slopes
    log_p = (s - m) - log_l
    p = exp(log_p)
    inner = dp - shift
    if slopes.entropy is not None:
        inner -= dh * (tl.maximum(log_p, FLOOR) if CLAMP else log_p)
    if slopes.collision is not None:
        inner += dc * p
    ds = p * inner
    if GUARD:
        p = tl.where(seen, p, 0.0)
        ds = tl.where(seen, ds, 0.0)
    return p, ds
