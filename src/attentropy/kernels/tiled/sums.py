"""Weights that are not probabilities, over tiles: f(s) summed, then normalised outside.

One pass gives o = sum f v, n1 = sum |f| and n2 = sqrt(sum f^2); output, mass and the root of the
collision are o / size, n1 / size and n2 / size with size = 1, visible, n1 or n2, in plain autograd.
Backward: df = do . v + sign(f) dn1 + f / n2 dn2, recomputed by tiles.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from attentropy.core.call import Call, Rows, is_noise
from attentropy.core.states import strongest
from attentropy.core.weights import L1, L2, Decay, Kernelised, ReluSquared, own, squares
from attentropy.kernels.mass import receiving
from attentropy.kernels.passes import Grads, InputGradients, Needs, Operators, Passes
from attentropy.kernels.tiled.gradients import GradientSums
from attentropy.kernels.tiled.means import top_of
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
        o: sum f v, [B,H,Q,Dv], float32 or better; float64 for L1 and L2.
        n1: sum |f|.
        n2: sqrt(sum f^2).
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
    size = row_size(call, n1, n2)
    out = divided(o, size[..., None]).to(call.v.dtype)
    wide = torch.float64 if call.q.dtype == torch.float64 else torch.float32
    m, collision, mass = (x.to(wide) for x in (m, divided(n2, size).square(), divided(n1, size)))
    return Rows(out, None, None, m, argmax, collision, mass)


def key_mass(call: Call) -> Tensor:
    """sum_i w_ij [B,H,K]: the gradient of sum_i out_i with respect to values that are ones."""
    with torch.no_grad():
        call = receiving(call)
        results = PASSES(call)
        size = row_size(call, results.n1, results.n2)[..., None]
        w = divided(torch.ones_like(size), size)
        return PASSES.gradient(call, results, {"o": w}, of="v")[..., 0]


def row_size(call: Call, n1: Tensor, n2: Tensor) -> Tensor:
    """What each row of unnormalised weights is divided by; 0 for rows of zeros."""
    match call.weights:
        case L1() | Kernelised():
            return n1
        case L2():
            return n2
        case ReluSquared():
            return call.visible.to(n1.dtype).expand_as(n1)
        case _:
            return torch.ones_like(n1)


def divided(x: Tensor, size: Tensor) -> Tensor:
    """x / size, and 0 where the size is 0."""
    none = size == 0
    return (x / size.masked_fill(none, 1.0)).masked_fill(none, 0.0)


def _tiler(call: Call) -> Tiler:
    return Tiler(call, exact=_is_exact(call))


def _is_exact(call: Call) -> bool:
    """Whether sums are taken in float64: a row is divided by its size, however small that is."""
    return isinstance(call.weights, L1 | L2)


def forward(call: Call) -> SumResults:
    """The forward pass. No autograd."""
    tiler = _tiler(call)
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
            factors = dropped(tiler, block, keys)
            o_part = mix(f if factors is None else f * factors, tiler, block, keys)
            for target, value in ((n1, f.abs().sum(-1)), (o, o_part)):
                part = tiler.part(block, target)
                part.add_(value.reshape(part.shape))
            part = tiler.part(block, n2)
            torch.hypot(part, _norm(f).reshape(part.shape), out=part)
    lost = lost_rows(tiler, m)
    if lost.any():
        argmax = torch.where(lost, first_seen(tiler), argmax)
    if _is_exact(call):
        noise = is_noise(call, n2)
        o.masked_fill_(noise[..., None], 0.0)
        n1, n2 = (x.masked_fill_(noise, 0.0) for x in (n1, n2))
    return SumResults(o, n1, n2, m, argmax)


def _norm(f: Tensor) -> Tensor:
    """sqrt(sum f^2) of each row, of numbers whose squares may underflow."""
    top = f.abs().amax(-1, keepdim=True)
    top = torch.where((top > 0) & top.isfinite(), top, 1.0)
    return torch.linalg.vector_norm(f / top, dim=-1).mul_(top[..., 0])


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
    top, at = top_of(tiler, block, keys, s)
    s4 = tiler.four(block, s)
    if isinstance(tiler.call.weights, Decay):
        s4.copy_(_powers(tiler.call.weights, tiler, block, keys))
    if squares(tiler.call.weights):
        s.clamp_(min=0.0).square_()
    if (weigh := own(tiler.call.weights)) is not None:
        s.copy_(weigh(s))
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
    tiler = _tiler(call)
    flow = {name: None if (g := grads.get(name)) is None else g.to(tiler.dtype) for name in FLOWING}
    tiler.expect(*flow.values())
    if flow["n2"] is not None:
        flow["n2"] = divided(flow["n2"], results.n2.to(tiler.dtype))
    total = GradientSums(tiler, needs)
    for block in tiler.blocks():
        for keys in tiler.key_ranges(block):
            _backward_tile(tiler, block, keys, grads=flow, total=total)
    return total.found()


def _backward_tile(
    tiler: Tiler, block: RowBlock, keys: slice, *, grads: Grads, total: GradientSums
) -> None:
    d_o, d_n1, d_n2 = (grads.get(name) for name in FLOWING)
    s = _kept_logits(tiler, block, keys)
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
        d_f.addcmul_(f, tiler.rows(block, d_n2))
    if isinstance(tiler.call.weights, Decay):
        return
    if squares(tiler.call.weights):
        d_f.mul_(f.sqrt_().mul_(2.0))
    if s is not None:
        d_f = _through(tiler, s, d_f)
    if tiler.hides:
        tiler.hide(block, keys, tiler.four(block, d_f), 0.0)
    total.add(block, keys, d_f)


def _kept_logits(tiler: Tiler, block: RowBlock, keys: slice) -> Tensor | None:
    """The logits of a tile, for weights of a caller's own."""
    own_weights = own(tiler.call.weights) is not None
    return logits(tiler, block, keys).clone() if own_weights else None


def _through(tiler: Tiler, s: Tensor, d_f: Tensor) -> Tensor:
    """The gradient of logits from that of weights of a caller's own."""
    weigh = own(tiler.call.weights)
    assert weigh is not None
    with torch.enable_grad():
        s = s.requires_grad_()
        found = weigh(s)
        (d_s,) = torch.autograd.grad(found, s, d_f) if found.requires_grad else (d_f.zero_(),)
    return d_s.contiguous()


def empty(call: Call) -> SumResults:
    """Results of a call with nothing in them."""
    shape = call.q.shape[:3]
    wide = torch.float64 if _is_exact(call) or call.q.dtype == torch.float64 else torch.float32
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
