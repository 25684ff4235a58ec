"""Few queries, many keys: the states of shares of the keys, merged in the order of the keys."""

import triton
import triton.language as tl

from attentropy.kernels.triton.device.forward import finish
from attentropy.kernels.triton.device.state import blind, merge


@triton.jit
def join(
    written, unsure, partial, splits, total,
    DV: tl.constexpr, BLOCK_V: tl.constexpr, WANTED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program: the results of BLOCK rows out of the `total` rows of [B,H,Q]."""
    rows = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    alive = rows < total
    d = tl.arange(0, BLOCK_V)
    state = blind(BLOCK)
    acc = tl.zeros((BLOCK, BLOCK_V), tl.float32)
    for split in range(0, splits):
        place = rows * splits + split
        m = tl.load(partial.m + place, mask=alive, other=float("-inf"))
        l = tl.load(partial.l + place, mask=alive, other=0.0)
        t = tl.load(partial.t + place, mask=alive, other=0.0)
        u = tl.load(partial.u + place, mask=alive, other=0.0)
        c = tl.load(partial.c + place, mask=alive, other=0.0)
        top = tl.load(partial.top + place, mask=alive, other=-1)
        part = tl.load(
            partial.acc + place[:, None] * DV + d[None, :],
            mask=alive[:, None] & (d < DV)[None, :], other=0.0,
        )  # fmt: skip
        state, alpha, beta = merge(state, (m, l, t, u, c, top))
        acc = acc * alpha[:, None] + part * beta[:, None]
    finish(state, (acc, None), written, unsure, rows, alive, DV, BLOCK_V, WANTED)
