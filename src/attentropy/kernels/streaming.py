"""reference.attend over tiles of keys: any device, any dtype, no n x n tensor, ever.

Forward: each tile gives a row state, and states merge. Backward: tiles are recomputed from the
saved maximum m and log l; with delta = dout . out the gradient of a logit is

    ds = p (dout . v - delta + dlse - dH (log p + H) + 2 dC (p - C)).
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from attentropy.kernels import elementwise
from attentropy.kernels.autograd import once
from attentropy.kernels.call import Call, Rows, replace_tensors
from attentropy.kernels.hard import harden, is_hard
from attentropy.kernels.tiles import Block, Gradients, Tiler, dropped, logits, mix
from attentropy.states import RowState, merge, pivot

INPUTS = ("q", "k", "v", "scale", "bias", "relative", "additive")
_CHUNK = 128


def lacks(call: Call) -> str | None:
    """Nothing: it serves every call."""
    return None


def attend(call: Call) -> Rows:
    """Output and statistics of every row; differentiable once."""
    if not call.weights.probabilities:
        return elementwise.attend(call)
    if is_hard(call.weights):
        soft = _soft(replace_tensors(call, {"v": call.v.detach()}))
        return harden(call, soft)
    return _soft(call)


def _soft(call: Call) -> Rows:
    run = _compiled if torch.compiler.is_compiling() else _eager
    out, entropy, lse, m, argmax, collision, _ = run(call)
    return Rows(out, entropy, lse, m, argmax, collision)


def _eager(call: Call) -> tuple[Tensor, ...]:
    results: tuple[Tensor, ...] = _Streaming.apply(call, *(getattr(call, x) for x in INPUTS))
    return results


def _compiled(call: Call) -> tuple[Tensor, ...]:
    from attentropy.kernels import ops

    return ops.softmax(call)


class _Streaming(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: Call, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        results = forward(call)
        out, entropy, _, m, argmax, collision, log_l = results
        ctx.call = call
        ctx.save_for_backward(*inputs, out, entropy, m, collision, log_l)
        ctx.mark_non_differentiable(m, argmax, log_l)
        ctx.set_materialize_grads(False)
        return results

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        saved = ctx.saved_tensors
        call = replace_tensors(ctx.call, dict(zip(INPUTS, saved, strict=False)))
        needs = dict(zip(INPUTS, ctx.needs_input_grad[1:], strict=True))
        d_out, d_entropy, d_lse, _, _, d_collision, _ = grads
        flowing = (d_out, d_entropy, d_lse, d_collision)
        found = backward(call, saved[len(INPUTS) :], flowing, needs)
        return None, *once("streaming", *found)


def forward(call: Call) -> tuple[Tensor, ...]:
    """out, entropy, lse, max_logit, argmax, collision, and log l for the backward pass."""
    tiler = Tiler(call)
    found = _rows(tiler)
    if not tiler.hides and (found.t.isnan() & ~found.m.isnan()).any():
        tiler.hides = True  # logits overflowed to -inf: they weigh nothing, as hidden ones do
        found = _rows(tiler)
    return _results(found, call.visible.expand(call.q.shape[:3]))


def _rows(tiler: Tiler) -> "_Means":
    rows, width = tiler.q.shape[:3], tiler.v.shape[-1]
    out = tiler.call.v.new_zeros(*rows, width)
    sums = tiler.q.new_zeros(4, *rows)
    sums[0] = -torch.inf
    argmax = torch.full(rows, -1, dtype=torch.int64, device=out.device)
    for block in tiler.blocks():
        found = _block(tiler, block)
        if found is not None:
            part = sums[:, block.batch, tiler.heads_of(block), block.queries]
            part.copy_(torch.stack(found[:4]).view(part.shape))
            tiler.put(block, out, found.o)
            tiler.put(block, argmax, found.argmax)
    m, l, t, c = sums.unbind()
    return _Means(m, l, t, c, out, argmax)


class _Means(NamedTuple):
    """A row state with t, c and o taken under p = e^(s-m) / l instead of e^(s-m)."""

    m: Tensor
    l: Tensor
    t: Tensor
    c: Tensor
    o: Tensor
    argmax: Tensor

    def state(self) -> RowState:
        m, l, t, c, o, argmax = self
        return RowState(m, l, l * t, l.square() * c, l[..., None] * o, argmax, argmax)

    @classmethod
    def of(cls, state: RowState) -> "_Means":
        m, l, t, c, o, _, argmax = state
        share = l.masked_fill(l == 0, 1.0).reciprocal_()
        return cls(m, l, t * share, c * share.square(), o * share[..., None], argmax)


def _results(rows: _Means, visible: Tensor) -> tuple[Tensor, ...]:
    m, l, t, c, out, argmax = rows
    # a row that sees keys whose logits are all -inf has no distribution
    lost = m.isneginf() & (visible > 0)
    if lost.any():
        t, c = (x.masked_fill(lost, torch.nan) for x in (t, c))
        out = out.masked_fill(lost[..., None], torch.nan)
    log_l = l.masked_fill(visible == 0, 1.0).log()
    lse = torch.where(m.isinf(), m, m + log_l)
    # m and c may be parts of one tensor, which operators must not return
    return out, log_l - t, lse, m.clone(), argmax, c.clone(), log_l


def _block(tiler: Tiler, block: Block) -> _Means | None:
    """Means of a block of rows, [N, R], over all their keys; None if they see nothing."""
    first, *others = tiler.key_ranges(block) or (None,)
    if first is None:
        return None
    found = _tile(tiler, block, first)
    if not others:
        return found
    total = found.state()
    for keys in others:
        total = merge(total, _tile(tiler, block, keys).state())
    return _Means.of(total)


def _tile(tiler: Tiler, block: Block, keys: slice) -> _Means:
    """states.from_tile in fewer passes: p = softmax(s), and l = 1 / p at the maximum."""
    s = logits(tiler, block, keys)
    m, argmax = _max(s)
    z = s.sub_(pivot(m)[..., None]) if tiler.hides else s.sub_(m[..., None])
    p = torch.softmax(z, -1, out=tiler.buffer("weights", tuple(z.shape)))
    l = p.gather(-1, argmax[..., None])[..., 0].reciprocal_()
    factors = dropped(tiler, block, keys)
    o = mix(p if factors is None else p * factors, tiler, block, keys)
    if tiler.hides:
        z.clamp_(min=-1e4)  # p is 0 there; 0 * -inf would be NaN
    c = torch.linalg.vector_norm(p, dim=-1).square_()
    t = z.mul_(p).sum(-1)
    found = _Means(m, l, t, c, o, argmax.add_(keys.start))
    return _without_blind(found) if tiler.hides else found


def _without_blind(rows: _Means) -> _Means:
    """Rows that see nothing of a tile are the identity, not 0/0."""
    unseen = rows.m.isneginf()
    l, t, c = (x.masked_fill(unseen, 0.0) for x in (rows.l, rows.t, rows.c))
    o = rows.o.masked_fill(unseen[..., None], 0.0)
    return _Means(rows.m, l, t, c, o, rows.argmax.masked_fill(unseen, -1))


def _max(s: Tensor) -> tuple[Tensor, Tensor]:
    """Maximum and its lowest index; amax is vectorised in torch, max with indices is not."""
    whole = s.shape[-1] // _CHUNK * _CHUNK
    if whole < 4 * _CHUNK:
        m, at = s.max(-1)
        return m, at
    chunks = s.flatten(0, 1)[:, :whole].unflatten(-1, (-1, _CHUNK))
    m, chunk = chunks.amax(-1).max(-1)
    winners = chunks[torch.arange(len(chunk), device=s.device), chunk]
    at = winners.argmax(-1).add_(chunk, alpha=_CHUNK).view(s.shape[:-1])
    m = m.view(s.shape[:-1])
    if whole == s.shape[-1]:
        return m, at
    rest, tail = s[..., whole:].max(-1)
    later = (rest > m) | rest.isnan()
    return torch.maximum(m, rest), torch.where(later & ~m.isnan(), tail + whole, at)


def backward(
    call: Call,
    results: tuple[Tensor, ...],
    grads: tuple[Tensor | None, ...],
    needs: dict[str, bool],
) -> tuple[Tensor | None, ...]:
    """Gradients of INPUTS from those of out, entropy, lse and collision."""
    tiler = Tiler(call)
    total = Gradients(tiler, needs)
    flow = _Flow.of(tiler, results, grads)
    for block in tiler.blocks():
        for keys in tiler.key_ranges(block):
            _backward_tile(tiler, block, keys, flow=flow, total=total)
    shapes = {name: getattr(call, name) for name in INPUTS}
    return tuple(
        total.of[name].sum_to_size(x.shape).to(x.dtype) if name in total.of else None
        for name, x in shapes.items()
    )


class _Flow(NamedTuple):
    """What the gradient of a row's logits needs, each [B,H,Q] but the first.

    ds = p (d_out . v + constant - d_entropy log p + 2 d_collision p)
    """

    d_out: Tensor | None
    m: Tensor
    log_l: Tensor
    constant: Tensor
    d_entropy: Tensor | None
    d_collision: Tensor | None

    @classmethod
    def of(
        cls, tiler: Tiler, results: tuple[Tensor, ...], grads: tuple[Tensor | None, ...]
    ) -> "_Flow":
        out, entropy, m, collision, log_l = results
        d_out, d_entropy, d_lse, d_collision = (
            None if g is None else g.to(tiler.dtype) for g in grads
        )
        constant = torch.zeros_like(m)
        if d_out is not None:
            constant -= (d_out * out.to(tiler.dtype)).sum(-1)
        if d_entropy is not None:
            constant -= d_entropy * entropy
        if d_lse is not None:
            constant += d_lse
        if d_collision is not None:
            constant -= 2 * d_collision * collision
        return cls(d_out, pivot(m), log_l, constant, d_entropy, d_collision)


def _backward_tile(
    tiler: Tiler, block: Block, keys: slice, *, flow: _Flow, total: Gradients
) -> None:
    s = logits(tiler, block, keys)
    log_p = s.sub_(tiler.rows(block, flow.m)).sub_(tiler.rows(block, flow.log_l))
    p = torch.exp(log_p, out=tiler.buffer("weights", tuple(s.shape)))
    inner = tiler.buffer("inner", tuple(s.shape)).copy_(
        tiler.rows(block, flow.constant).expand(s.shape)
    )
    if flow.d_out is not None:
        factors = dropped(tiler, block, keys)
        d_out = tiler.wide_rows(block, flow.d_out)
        d_p = torch.bmm(d_out, tiler.keyed(block, keys, tiler.v).mT)
        inner.add_(d_p if factors is None else d_p.mul_(factors))
        if "v" in total.of:
            used = p if factors is None else p * factors
            tiler.add_keyed(block, keys, total.of["v"], torch.bmm(used.mT, d_out))
    if flow.d_entropy is not None:
        log_p.clamp_(min=-1e4)  # p is 0 there; 0 * -inf would be NaN
        inner.addcmul_(log_p, tiler.rows(block, flow.d_entropy), value=-1.0)
    if flow.d_collision is not None:
        inner.addcmul_(p, tiler.rows(block, flow.d_collision), value=2.0)
    total.add(block, keys, inner.mul_(p))
