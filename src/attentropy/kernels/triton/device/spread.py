"""Varentropy of rows whose squares about the maximum cancel, summed about the mean.

The forward pass sums z p and z^2 p with z the distance from the maximum, and has varentropy as a
difference: right to a rounding of the squared mean. It marks rows whose squared mean is many times
their varentropy. These are summed once more here, about the mean that is known by now, as
sum p (log p + H)^2, in which nothing cancels.
"""

import triton
import triton.language as tl

from attentropy.kernels.triton.device.logits import LOG2E, final, size_of
from attentropy.kernels.triton.device.state import FLOOR, SPREAD_OUT
from attentropy.kernels.triton.device.tiles import dot, load
from attentropy.kernels.triton.device.visibility import key_span, load_row


@triton.jit
def spread(
    q, k, terms, written, unsure, heads, key_heads,
    D: tl.constexpr, BLOCK_D: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """One program: the marked ones of BLOCK rows of one head."""
    queries = terms.queries
    blocks = tl.cdiv(queries, BLOCK)
    pid = tl.program_id(0)
    r = (blocks - 1 - pid % blocks) * BLOCK + tl.arange(0, BLOCK)
    b = (pid // blocks // heads).to(tl.int64)
    h = (pid // blocks % heads).to(tl.int64)
    hk = h // (heads // key_heads)
    rows = (b * heads + h) * queries + r
    marks = tl.load(unsure + rows, mask=r < queries, other=0)
    alive = (marks & SPREAD_OUT) > 0
    row = load_row(terms, b, h, r[:, None], alive[:, None])
    # a dead row sees nothing, so that a block without marks has no tiles
    span = key_span(row, terms.keys, TILE)
    q_tile = load(q, (b, h, r.to(tl.int64), alive), D, BLOCK_D, True)
    m = tl.load(written.max_logit + rows, mask=alive, other=0.0)[:, None]
    log_l = tl.load(written.log_l + rows, mask=alive, other=0.0)[:, None]
    entropy = tl.load(written.entropy + rows, mask=alive, other=0.0)[:, None]
    total = tl.zeros((BLOCK,), tl.float32)
    for first in range(span[0], span[3], TILE):
        key = first + tl.arange(0, TILE)
        theirs = (b, hk, key.to(tl.int64), key < terms.keys)
        x = dot(q_tile, tl.trans(load(k, theirs, D, BLOCK_D, True)), PRECISION)
        s, seen, _damp = final(x, row, key[None, :], terms, True)
        z = (s * size_of(row, terms) - m) - log_l
        p = tl.exp2(z * LOG2E)
        far = tl.maximum(z, FLOOR) + entropy
        total += tl.sum(tl.where(seen, p * far * far, 0.0), 1)
    tl.store(written.varentropy + rows, total, mask=alive)
