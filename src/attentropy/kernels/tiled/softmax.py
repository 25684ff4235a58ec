"""reference.attend over tiles of keys: any device, any dtype, no n x n tensor, ever.

Forward: each tile gives a row state, and states merge. Backward: tiles are recomputed from the
saved maximum m and log l; with delta = dout . out the gradient of a logit is

    ds = p (dout . v - delta + dlse - dH y + 2 dC (p - C) + dV (y^2 + 2 y - V)),  y = log p + H.
"""

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from attentropy.core.call import Call, Rows, replace_tensors
from attentropy.core.states import blind, merge, pivot
from attentropy.core.weights import Decay, RowWeights, own
from attentropy.kernels import softmax_results
from attentropy.kernels.mass import counted
from attentropy.kernels.passes import Grads, InputGradients, Needs, Operators
from attentropy.kernels.softmax_results import SoftmaxResults
from attentropy.kernels.tiled import bounded, rowwise, sums
from attentropy.kernels.tiled.gradients import GradientSums
from attentropy.kernels.tiled.hard import harden, is_hard
from attentropy.kernels.tiled.means import Means, collect, moments, rest, top_of, without_blind
from attentropy.kernels.tiled.tiles import (
    RowBlock,
    Tiler,
    dropped,
    first_seen,
    keyed_product,
    logits,
    lost_rows,
    mix,
    pairs,
)

name = "streaming"


def lacks(call: Call) -> str | None:
    """What the call needs and this kernel lacks, in words; None if it can serve.

    It serves every call but those that need gradients of the weights themselves.
    """
    weigh = own(call.weights)
    if weigh is not None and torch.compiler.is_compiling():
        return "torch.compile of weights of your own"
    if isinstance(call.weights, RowWeights) and torch.compiler.is_compiling():
        return f"torch.compile of {type(call.weights).__name__}"
    if not torch.is_grad_enabled():
        return None
    if isinstance(call.weights, Decay):
        rate = call.weights.rate
        learned = isinstance(rate, Tensor) and rate.requires_grad
        return "gradients of the rate of Decay" if learned else None
    if weigh is not None and weigh(call.q.new_zeros(1, 1, 1, 1)).requires_grad:
        return "gradients of what weights of your own are made of"
    return None


def attend(call: Call) -> Rows:
    """Output and statistics of every row; differentiable once."""
    if isinstance(call.weights, RowWeights):
        return rowwise.attend(call)
    if not call.weights.probabilities:
        return sums.attend(call)
    if is_hard(call.weights):
        soft = softmax_results.rows(PASSES(replace_tensors(call, {"v": call.v.detach()})))
        return harden(call, soft)
    return softmax_results.rows(PASSES(call))


def key_mass(call: Call) -> Tensor:
    """What each key receives, [B,H,K]."""
    if isinstance(call.weights, RowWeights):
        return rowwise.key_mass(call)
    if not call.weights.probabilities:
        return sums.key_mass(call)
    if is_hard(call.weights):
        with torch.no_grad():
            return counted(call, PASSES(call).argmax)
    return softmax_results.key_mass(PASSES, call)


def forward(call: Call) -> SoftmaxResults:
    """The forward pass. No autograd."""
    bound = bounded.reach(call)
    if bound <= bounded.REACH:
        tiler = Tiler(call, unit=bounded.BIT)
        return _results(bounded.rows(tiler, bound=bound), tiler)
    tiler = Tiler(call)
    found = _rows(tiler)
    if not tiler.hides and (found.t.isnan() & ~found.m.isnan()).any():
        tiler.hides = True  # logits overflowed to -inf: they weigh nothing, as hidden ones do
        found = _rows(tiler)
    return _results(found, tiler)


def _rows(tiler: Tiler) -> Means:
    return Means(*collect(tiler, partial(_block, tiler)))


def _results(rows: Means, tiler: Tiler) -> SoftmaxResults:
    m, t, spread, out, argmax = rows.m, rows.t, rows.spread, rows.o, rows.argmax
    collision, visible = rows.norm.square(), tiler.call.visible
    lost = lost_rows(tiler, m)  # they have no distribution
    if lost.any():
        t, spread, collision = (x.masked_fill(lost, torch.nan) for x in (t, spread, collision))
        out = out.masked_fill(lost[..., None], torch.nan)
        argmax = torch.where(lost, first_seen(tiler), argmax)
    log_l = rows.rest.masked_fill(visible == 0, 0.0).log1p_()
    lse = torch.where(m.isinf(), m, m + log_l)
    entropy = log_l - t
    spread = spread.masked_fill(entropy == 0, 0.0)
    # m is a part of a tensor, which operators must not return
    return SoftmaxResults(out, entropy, lse, m.clone(), argmax, collision, spread, log_l)


def _block(tiler: Tiler, block: RowBlock) -> Means:
    """Means of a block of rows, [N, R], over all their keys."""
    ranges = tiler.key_ranges(block)
    if len(ranges) == 1:
        return _tile(tiler, block, ranges[0])
    b, h, r = block.count
    total = blind((b * h, tiler.group * r), tiler.v.shape[-1], like=tiler.q)
    for keys in ranges:
        total = merge(total, _tile(tiler, block, keys).state())
    return Means.of(total)


def _tile(tiler: Tiler, block: RowBlock, keys: slice) -> Means:
    """states.from_tile in fewer passes."""
    s = logits(tiler, block, keys)
    m, argmax = top_of(tiler, block, keys, s)
    base = pivot(m) if tiler.hides else m
    z = s.sub_(base[..., None])
    p = torch.softmax(z, -1, out=tiler.buffer("weights", tuple(z.shape)))
    more = rest(p, argmax, 1.0)
    factors = dropped(tiler, block, keys)
    o = mix(p if factors is None else p * factors, tiler, block, keys)
    norm = torch.linalg.vector_norm(p, dim=-1)
    if tiler.hides:
        z.clamp_(min=-1e4)  # p is 0 there; 0 * -inf would be NaN
    t, spread = moments(tiler, z, p, 1.0)
    found = Means(m, more, t, spread, norm, o, argmax.add_(keys.start))
    return without_blind(found) if tiler.hides else found


@torch.no_grad()
def backward(call: Call, results: SoftmaxResults, grads: Grads, needs: Needs) -> InputGradients:
    """Gradients of INPUTS, None where not needed. No autograd."""
    if needs["scale"] and grads.get("out") is not None:
        results = softmax_results.unrounded(forward, call, results)
    tiler = Tiler(call)
    total = GradientSums(tiler, needs)
    flow = _RowFlow.of(tiler, results, grads)
    tiler.expect(flow.constant, flow.slope)
    for block in tiler.blocks():
        for keys in tiler.key_ranges(block):
            _backward_tile(tiler, block, keys, flow=flow, total=total)
    return total.found()


class _RowFlow(NamedTuple):
    """What the gradient of a row's logits needs, each [B,H,Q] but the first.

    ds = p (d_out . v + constant + slope y + d_varentropy y^2 + 2 d_collision p), y = log p + H
    """

    d_out: Tensor | None
    m: Tensor
    log_l: Tensor
    constant: Tensor
    entropy: Tensor
    slope: Tensor | None
    d_collision: Tensor | None
    d_varentropy: Tensor | None

    @classmethod
    def of(cls, tiler: Tiler, results: SoftmaxResults, grads: Grads) -> "_RowFlow":
        d_out, d_entropy, d_lse, d_collision, d_varentropy = (
            None if (g := grads.get(name)) is None else g.to(tiler.dtype)
            for name in softmax_results.FLOWING
        )
        constant = torch.zeros_like(results.max_logit)
        slope = None if d_entropy is None else -d_entropy
        if d_out is not None:
            constant -= (d_out * results.out.to(tiler.dtype)).sum(-1)
        if d_lse is not None:
            constant += d_lse
        if d_collision is not None:
            constant -= 2 * d_collision * results.collision
        if d_varentropy is not None:
            constant -= d_varentropy * results.varentropy
            slope = 2 * d_varentropy if slope is None else slope + 2 * d_varentropy
        m, log_l, entropy = pivot(results.max_logit), results.log_l, results.entropy
        return cls(d_out, m, log_l, constant, entropy, slope, d_collision, d_varentropy)


def _backward_tile(
    tiler: Tiler, block: RowBlock, keys: slice, *, flow: _RowFlow, total: GradientSums
) -> None:
    s = logits(tiler, block, keys)
    log_p = s.sub_(tiler.rows(block, flow.m)).sub_(tiler.rows(block, flow.log_l))
    p = tiler.buffer("weights", tuple(s.shape))
    torch.exp2(torch.mul(log_p, 1 / bounded.BIT, out=p), out=p)  # half the time of torch.exp
    if tiler.tainted:
        tiler.hide(block, keys, tiler.four(block, p), 0.0)
    constant = tiler.rows(block, flow.constant)
    if flow.d_out is None:
        inner = tiler.buffer("inner", tuple(s.shape)).copy_(constant.expand(s.shape))
    else:
        d_out, factors = tiler.wide_rows(block, flow.d_out), dropped(tiler, block, keys)
        inner = pairs("inner", d_out, tiler.keyed(block, keys, tiler.v), tiler)
        if factors is not None:
            inner.mul_(factors)
        inner.add_(constant)
        if "v" in total.of:
            used = p if factors is None else p * factors
            tiler.add_keyed(
                block, keys, total.of["v"], keyed_product(used, d_out, tiler, block, keys)
            )
    if flow.slope is not None:
        # p is 0 below; 0 * -inf would be NaN
        y = log_p.clamp_(min=-1e4).add_(tiler.rows(block, flow.entropy))
        inner.addcmul_(y, tiler.rows(block, flow.slope))
        if flow.d_varentropy is not None:
            inner.addcmul_(y.square_(), tiler.rows(block, flow.d_varentropy))
    if flow.d_collision is not None:
        inner.addcmul_(p, tiler.rows(block, flow.d_collision), value=2.0)
    inner.mul_(p)
    if tiler.tainted:
        tiler.hide(block, keys, tiler.four(block, inner), 0.0)
    total.add(block, keys, inner)


def _operators() -> Operators[SoftmaxResults]:
    from attentropy.kernels.tiled.operators import SOFTMAX

    return SOFTMAX


PASSES = softmax_results.softmax_passes(
    "softmax", kernel=name, forward=forward, backward=backward, operators=_operators
)
