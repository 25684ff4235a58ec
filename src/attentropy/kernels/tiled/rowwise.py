"""Weights that need whole rows of logits, a block of rows at a time: O(n) memory, no n x n tensor.

A block holds the logits of its rows against all keys that they see. Forward: w = weights(s), then
out = w v and the statistics of w. Backward: the block is computed again under autograd, which takes
the gradients of w and of its statistics to the logits; from there on they go tile by tile.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from attentropy.core.call import Call, Rows
from attentropy.core.errors import UnsupportedError
from attentropy.core.weights import RowWeights
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


class RowwiseResults(NamedTuple):
    """What the forward pass computes, each [B,H,Q] but the first.

    Attributes:
        out: sum w v, [B,H,Q,Dv], float32 or better.
        collision: sum w^2.
        mass: sum |w|.
        entropy: -sum w log w.
        varentropy: sum w (log w + entropy)^2.
        max_logit: the largest logit.
        argmax: int64, the key that has it.
    """

    out: Tensor
    collision: Tensor
    mass: Tensor
    entropy: Tensor
    varentropy: Tensor
    max_logit: Tensor
    argmax: Tensor


FLOWING = ("out", "collision", "mass", "entropy", "varentropy")


def attend(call: Call) -> Rows:
    """Output and statistics of every row; differentiable once."""
    found = PASSES(call)
    out = found.out.to(call.v.dtype)
    top = (found.max_logit, found.argmax)
    if not call.weights.probabilities:
        return Rows(out, None, None, *top, found.collision, found.mass)
    spread = found.varentropy.masked_fill(found.entropy == 0, 0.0)
    return Rows(out, found.entropy, None, *top, found.collision, varentropy=spread)


def key_mass(call: Call) -> Tensor:
    """sum_i w_ij [B,H,K]: the gradient of sum_i out_i with respect to values that are ones."""
    with torch.no_grad():
        call = receiving(call)
        results = PASSES(call)
        return PASSES.gradient(call, results, {"out": torch.ones_like(results.out)}, of="v")[..., 0]


def forward(call: Call) -> RowwiseResults:
    """The forward pass. No autograd."""
    tiler, found = Tiler(call), empty(call)
    for x in found[:5]:
        x.zero_()
    found.max_logit.fill_(-torch.inf)
    found.argmax.fill_(-1)
    for block in tiler.blocks():
        ranges = tiler.key_ranges(block)
        if not ranges:
            continue
        s = _logits(tiler, block, ranges)
        w = _weights(call, s)
        top, at = top_of(tiler, block, slice(ranges[0].start, ranges[-1].stop), s)
        at = (at + ranges[0].start).masked_fill(top.isneginf(), -1)
        for target, value in zip(found[1:], (*_statistics(w), top, at), strict=True):
            tiler.put(block, target, value)
        out = tiler.part(block, found.out)
        for keys, part in zip(ranges, w.split(_sizes(ranges), -1), strict=True):
            factors = dropped(tiler, block, keys)
            used = part.contiguous() if factors is None else part * factors
            out.add_(mix(used, tiler, block, keys).reshape(out.shape))
    lost = lost_rows(tiler, found.max_logit)
    if lost.any():
        found.argmax.copy_(torch.where(lost, first_seen(tiler), found.argmax))
    return found


def _logits(tiler: Tiler, block: RowBlock, ranges: list[slice]) -> Tensor:
    """Final logits [N, R, T] of a block against all keys that its rows may see."""
    # tiles share one buffer
    return torch.cat([logits(tiler, block, keys).clone() for keys in ranges], -1)


def _sizes(ranges: list[slice]) -> list[int]:
    return [keys.stop - keys.start for keys in ranges]


def _weights(call: Call, s: Tensor) -> Tensor:
    assert isinstance(call.weights, RowWeights)
    return call.weights.of_rows(s).masked_fill(s.isneginf(), 0.0)


def _statistics(w: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Collision, mass, entropy and varentropy of rows of weights."""
    log_w = w.masked_fill(w <= 0, 1.0).log()
    entropy = -(w * log_w).sum(-1)
    spread = (w * (log_w + entropy[..., None]).square()).sum(-1)
    return w.square().sum(-1), w.abs().sum(-1), entropy, spread


@torch.no_grad()
def backward(call: Call, results: RowwiseResults, grads: Grads, needs: Needs) -> InputGradients:
    """Gradients of INPUTS, None where not needed. No autograd."""
    tiler = Tiler(call)
    flow = {name: None if (g := grads.get(name)) is None else g.to(tiler.dtype) for name in FLOWING}
    tiler.expect(*flow.values())
    total = GradientSums(tiler, needs)
    for block in tiler.blocks():
        ranges = tiler.key_ranges(block)
        if ranges:
            _backward_block(tiler, block, ranges, flow=flow, total=total)
    return total.found()


def _backward_block(
    tiler: Tiler, block: RowBlock, ranges: list[slice], *, flow: Grads, total: GradientSums
) -> None:
    with torch.enable_grad():
        s = _logits(tiler, block, ranges).requires_grad_()
        w = _weights(tiler.call, s)
        made = dict(zip(FLOWING[1:], _statistics(w), strict=True))
    given: list[tuple[Tensor, Tensor]] = [(w, torch.zeros_like(w))]
    d_out = flow["out"]
    if d_out is not None:
        rows = tiler.wide_rows(block, d_out)
        parts = w.detach().split(_sizes(ranges), -1)
        spread = zip(ranges, parts, given[0][1].split(_sizes(ranges), -1), strict=True)
        for keys, part, d_part in spread:
            _mixed(tiler, block, keys, (part.contiguous(), rows), d_part, total)
    if total.of.keys() <= {"v"}:
        return  # as key_mass asks: in inference mode nothing could be differentiated
    for name, x in made.items():
        g = flow[name]
        if g is not None:
            given.append((x, tiler.rows(block, g)[..., 0]))
    (d_s,) = torch.autograd.grad([x for x, _ in given], s, [g for _, g in given])
    d_s = d_s.masked_fill(s.isneginf(), 0.0)
    for keys, part in zip(ranges, d_s.split(_sizes(ranges), -1), strict=True):
        total.add(block, keys, part.contiguous())


def _mixed(
    tiler: Tiler,
    block: RowBlock,
    keys: slice,
    of: tuple[Tensor, Tensor],
    d_w: Tensor,
    total: GradientSums,
) -> None:
    """Gradients through out = w v of one range of keys: of the values, and into `d_w`."""
    w, d_rows = of
    factors = dropped(tiler, block, keys)
    through = torch.bmm(d_rows, tiler.keyed(block, keys, tiler.v).mT)
    d_w.copy_(through if factors is None else through.mul_(factors))
    if tiler.hides:
        d_w.masked_fill_(~tiler.seen(block, keys), 0.0)
    if "v" in total.of:
        used = w if factors is None else w * factors
        tiler.add_keyed(block, keys, total.of["v"], keyed_product(used, d_rows, tiler, block, keys))


def empty(call: Call) -> RowwiseResults:
    """Results of a call with nothing in them."""
    shape = call.q.shape[:3]
    wide = torch.float64 if call.q.dtype == torch.float64 else torch.float32
    c, mass, h, spread, top = (call.q.new_empty(shape, dtype=wide) for _ in range(5))
    out = call.v.new_empty(*shape, call.v.shape[3], dtype=wide)
    argmax = call.q.new_empty(shape, dtype=torch.int64)
    return RowwiseResults(out, c, mass, h, spread, top, argmax)


def _operators() -> Operators[RowwiseResults]:
    raise UnsupportedError(
        "weights of whole rows (Entmax, Sparsemax, Softpick) cannot be recorded as an operator; "
        "kernel='reference' serves them under torch.compile"
    )


PASSES = Passes(
    name="rowwise",
    kernel="streaming",
    results=RowwiseResults,
    flowing=FLOWING,
    forward=forward,
    backward=backward,
    empty=empty,
    operators=_operators,
)
