"""Weights that are no probabilities, over tiles: f(s) summed, then normalised outside.

One pass gives o = sum f v, n1 = sum |f| and n2 = sum f^2; output, mass and collision are
w o, w n1 and w^2 n2 with w = 1, 1/visible, 1/n1 or 1/sqrt(n2), in plain autograd. Backward:
df = do . v + sign(f) dn1 + 2 f dn2, recomputed by tiles.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from attentropy.core.call import Call, Rows
from attentropy.core.states import strongest
from attentropy.core.weights import L1, L2, Decay, Kernelised, ReluSquared, Weights
from attentropy.kernels.mass import receiving
from attentropy.kernels.passes import Grads, InputGradients, Needs, Operators, Passes
from attentropy.kernels.tiled.gradients import GradientSums
from attentropy.kernels.tiled.tiles import (
    RowBlock,
    Tiler,
    dropped,
    first_seen,
    keyed_product,
    logits,
    lost_rows,
    mix,
)


class SumResults(NamedTuple):
    """What the forward pass of unnormalised weights f computes, each [B,H,Q] but the first.

    Attributes:
        o: sum f v, [B,H,Q,Dv], float32 or better.
        n1: sum |f|.
        n2: sum f^2.
        max_logit: the largest logit.
        argmax: int64, the key that has it.
    """

    o: Tensor
    n1: Tensor
    n2: Tensor
    max_logit: Tensor
    argmax: Tensor


def attend(call: Call) -> Rows:
    """Output and statistics of every row; differentiable once."""
    o, n1, n2, m, argmax = PASSES(call)
    w = normaliser(call, n1, n2)
    out = (w[..., None] * o).to(call.v.dtype)
    return Rows(out, None, None, m, argmax, w.square() * n2, w * n1)


def key_mass(call: Call) -> Tensor:
    """sum_i w_ij [B,H,K]: the gradient of sum_i out_i with respect to values that are ones."""
    with torch.no_grad():
        call = receiving(call)
        results = PASSES(call)
        w = normaliser(call, results.n1, results.n2)[..., None]
        return PASSES.gradient(call, results, {"o": w}, of="v")[..., 0]


def normaliser(call: Call, n1: Tensor, n2: Tensor) -> Tensor:
    """What each row of unnormalised weights is multiplied by; 0 for rows of zeros."""
    match call.weights:
        case L1() | Kernelised():
            size = n1
        case L2():
            size = n2.masked_fill(n2 == 0, 1.0).sqrt().masked_fill(n2 == 0, 0.0)
        case ReluSquared():
            size = call.visible.to(n1.dtype).expand_as(n1)
        case _:
            size = torch.ones_like(n1)
    return size.masked_fill(size == 0, 1.0).reciprocal().masked_fill(size == 0, 0.0)


def _squares(weights: Weights) -> bool:
    inner: Weights = weights.of if isinstance(weights, L1 | L2) else weights
    return isinstance(inner, ReluSquared)


def forward(call: Call) -> SumResults:
    """The forward pass. No autograd."""
    tiler = Tiler(call)
    rows = call.q.shape[:3]
    o = tiler.q.new_zeros(*rows, call.v.shape[-1])
    n1, n2 = (tiler.q.new_zeros(rows) for _ in range(2))
    m = tiler.q.new_full(rows, -torch.inf)
    argmax = torch.full(rows, -1, dtype=torch.int64, device=call.q.device)
    for block in tiler.blocks():
        for keys in tiler.key_ranges(block):
            top, at, f = _tile(tiler, block, keys)
            at = (at + keys.start).masked_fill(top.isneginf(), -1)
            _keep_larger(tiler, block, (m, argmax), (top, at))
            n1_part, n2_part = f.abs().sum(-1), f.square().sum(-1)
            factors = dropped(tiler, block, keys)
            o_part = mix(f if factors is None else f * factors, tiler, block, keys)
            for target, value in ((n1, n1_part), (n2, n2_part), (o, o_part)):
                part = tiler.part(block, target)
                part.add_(value.reshape(part.shape))
    lost = lost_rows(tiler, m)
    if lost.any():
        argmax = torch.where(lost, first_seen(tiler), argmax)
    return SumResults(o, n1, n2, m, argmax)


def _keep_larger(
    tiler: Tiler, block: RowBlock, held: tuple[Tensor, Tensor], new: tuple[Tensor, Tensor]
) -> None:
    m, argmax = (tiler.part(block, x) for x in held)
    top, at = (x.reshape(m.shape) for x in new)
    for target, value in zip((m, argmax), strongest((m, argmax), (top, at)), strict=True):
        target.copy_(value)


def _tile(tiler: Tiler, block: RowBlock, keys: slice) -> tuple[Tensor, Tensor, Tensor]:
    """Largest logit, where it is, and the unnormalised weights f of a tile."""
    s = logits(tiler, block, keys)
    top, at = s.max(-1)
    s4 = tiler.four(block, s)
    if isinstance(tiler.call.weights, Decay):
        s4.copy_(_powers(tiler.call.weights, tiler, block, keys))
    if _squares(tiler.call.weights):
        s.clamp_(min=0.0).square_()
    if tiler.hides:
        tiler.hide(block, keys, s4, 0.0)
    return top, at, s


def _powers(weights: Decay, tiler: Tiler, block: RowBlock, keys: slice) -> Tensor:
    where = tiler.where(block, keys)
    rate = weights.of_heads(tiler.query_heads, like=tiler.q)[tiler.heads_of(block)]
    return rate.detach().view(-1, 1, 1) ** (where.position - where.k).clamp(min=0)


@torch.no_grad()
def backward(call: Call, results: SumResults, grads: Grads, needs: Needs) -> InputGradients:
    """Gradients of INPUTS, None where not needed. No autograd."""
    tiler = Tiler(call)
    total = GradientSums(tiler, needs)
    for block in tiler.blocks():
        for keys in tiler.key_ranges(block):
            _backward_tile(tiler, block, keys, grads=grads, total=total)
    return total.found()


def _backward_tile(
    tiler: Tiler, block: RowBlock, keys: slice, *, grads: Grads, total: GradientSums
) -> None:
    d_o, d_n1, d_n2 = (grads.get(name) for name in FLOWING)
    _, _, f = _tile(tiler, block, keys)
    d_f = tiler.buffer("inner", tuple(f.shape)).zero_()
    if d_o is not None:
        factors = dropped(tiler, block, keys)
        d_rows = tiler.wide_rows(block, d_o)
        d_a = torch.bmm(d_rows, tiler.keyed(block, keys, tiler.v).mT)
        d_f.add_(d_a if factors is None else d_a.mul_(factors))
        if "v" in total.of:
            used = f if factors is None else f * factors
            tiler.add_keyed(
                block, keys, total.of["v"], keyed_product(used, d_rows, tiler, block, keys)
            )
    if d_n1 is not None:
        d_f.add_(f.sign().mul_(tiler.rows(block, d_n1)))
    if d_n2 is not None:
        d_f.addcmul_(f, tiler.rows(block, d_n2), value=2.0)
    if isinstance(tiler.call.weights, Decay):
        return
    if _squares(tiler.call.weights):
        d_f.mul_(f.sqrt_().mul_(2.0))
    if tiler.hides:
        tiler.hide(block, keys, tiler.four(block, d_f), 0.0)
    total.add(block, keys, d_f)


def empty(call: Call) -> SumResults:
    """Results of a call with nothing in them."""
    shape = call.q.shape[:3]
    wide = torch.float64 if call.q.dtype == torch.float64 else torch.float32
    n1, n2, m = (call.q.new_empty(shape, dtype=wide) for _ in range(3))
    o = call.v.new_empty(*shape, call.v.shape[3], dtype=wide)
    return SumResults(o, n1, n2, m, call.q.new_empty(shape, dtype=torch.int64))


def _operators() -> Operators[SumResults]:
    from attentropy.kernels.tiled.operators import SUMS

    return SUMS


FLOWING = ("o", "n1", "n2")
PASSES = Passes(
    name="sums",
    kernel="streaming",
    results=SumResults,
    flowing=FLOWING,
    forward=forward,
    backward=backward,
    empty=empty,
    operators=_operators,
)
