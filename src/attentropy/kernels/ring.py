"""Attention of the rows of this process over keys that travel, by any kernel for each block.

Forward: each block gives rows, rows are row states, and states merge. Backward: the share of a
block in a row is w = e^(lse_b - lse), and

    out = sum w out_b,  lse = log sum e^(lse_b),  H = sum w (H_b - log w),  C = sum w^2 C_b,

so each block is computed again and differentiated with the gradients of these sums:

    d out_b = w dout,  d H_b = w dH,  d C_b = w^2 dC,
    d lse_b = w (dlse + dout . (out_b - out) + dH (H_b - log w - H) + 2 dC (w C_b - C)).

Only rows of this process and two blocks are in memory at a time.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attentropy.kernels.autograd import once
from attentropy.kernels.call import Call, Rows, replace_tensors
from attentropy.kernels.counts import of_rows
from attentropy.kernels.parts import Bounds, Run, bounds, cut, of_keys
from attentropy.kernels.transport import Gather, Ring
from attentropy.states import RowState, blind, merge, pivot, read

_INPUTS = ("q", "k", "v", "scale", "bias", "relative", "additive")
_SLICED = ("q", "k", "v", "scale", "bias")


@dataclass(frozen=True, eq=False)
class Journey:
    """A call over the keys of all ranks, the way they come, and the kernel for each part."""

    call: Call
    runs: tuple[Run, ...]
    bounds: tuple[Bounds, ...]
    route: Ring | Gather
    kernel: Callable[[Call], Rows]

    def parts(self, blocks: tuple[range, ...], k: Tensor, v: Tensor) -> Iterator["_Part"]:
        """Runs of rows against runs of keys, those left out that hide all of them."""
        first = 0
        for keys in blocks:
            columns = slice(first, first + len(keys))
            first = columns.stop
            for index, (run, seen) in enumerate(zip(self.runs, self.bounds, strict=True)):
                if seen.hides(keys):
                    continue
                k_part, v_part = k[:, :, columns], v[:, :, columns]
                call = cut(self.call, run, keys, whole=seen.shows(keys), k=k_part, v=v_part)
                if call.shape != "other" or bool(call.visible.any()):
                    yield _Part(index, run, keys, columns, call)


@dataclass(frozen=True, eq=False)
class _Part:
    index: int
    run: Run
    keys: range
    columns: slice
    call: Call


def journey(
    call: Call,
    rows: tuple[range, ...],
    *,
    shift: int,
    route: Ring | Gather,
    kernel: Callable[[Call], Rows],
) -> Journey:
    """The journey of a call whose rows are these queries of the whole sequence."""
    runs, first = [], 0
    for run in rows:
        runs.append(Run(slice(first, first + len(run)), run.start + shift))
        first += len(run)
    seen = tuple(bounds(call, run, keys=route.keys) for run in runs)
    return Journey(call, tuple(runs), seen, route, kernel)


def attend(way: Journey) -> Rows:
    """Output and statistics of every row of this process; differentiable once."""
    inputs = (getattr(way.call, name) for name in _INPUTS)
    out, entropy, lse, m, argmax, collision = _Travelling.apply(way, *inputs)
    return Rows(out, entropy, lse, m, argmax, collision)


class _Travelling(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, way: Journey, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        results = _forward(way)
        ctx.way = replace(way, call=replace_tensors(way.call, dict.fromkeys(_INPUTS)))
        ctx.save_for_backward(*inputs, *results)
        ctx.mark_non_differentiable(results[3], results[4])
        ctx.set_materialize_grads(False)
        return results

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        saved = ctx.saved_tensors
        call = replace_tensors(ctx.way.call, dict(zip(_INPUTS, saved, strict=False)))
        needs = dict(zip(_INPUTS, ctx.needs_input_grad[1:], strict=True))
        flow = _Flow.of(saved[len(_INPUTS) :], grads)
        found = _backward(replace(ctx.way, call=call), flow, needs)
        return None, *once("ring", *found)


def _wide(call: Call) -> torch.dtype:
    return torch.float64 if call.q.dtype == torch.float64 else torch.float32


def _forward(way: Journey) -> tuple[Tensor, ...]:
    """out, entropy, lse, max_logit, argmax, collision."""
    call = way.call
    batch, heads = call.q.shape[:2]
    like = call.q.new_empty(0, dtype=_wide(call))
    width = call.v.shape[-1]
    states = [blind((batch, heads, run.count), width, like=like) for run in way.runs]

    def visit(blocks: tuple[range, ...], k: Tensor, v: Tensor) -> None:
        for part in way.parts(blocks, k, v):
            state = _state(part, way.kernel(part.call))
            states[part.index] = merge(states[part.index], state)

    with torch.autocast(call.q.device.type, enabled=False):
        way.route.carry(call.k, call.v, visit)
    none = blind((batch, heads, 0), width, like=like)
    state = RowState(*(torch.cat(x, 2) for x in zip(none, *states, strict=True)))
    out, stats = read(state)
    found = (stats.entropy, stats.lse, stats.max_logit, stats.argmax, stats.collision)
    return out.to(call.v.dtype), *found  # type: ignore[return-value]


def _state(part: _Part, rows: Rows) -> RowState:
    """The row state that a kernel's rows were read from."""
    assert rows.lse is not None
    assert rows.entropy is not None
    assert rows.max_logit is not None
    assert rows.argmax is not None
    visible = part.call.visible.expand(part.call.q.shape[:3])
    log_l = (rows.lse - pivot(rows.max_logit)).clamp(min=0.0)
    l = log_l.exp().masked_fill(visible == 0, 0.0)
    return RowState(
        rows.max_logit,
        l,
        (l * (log_l - rows.entropy)).clamp(max=0.0),
        rows.collision * l.square(),
        rows.out.to(l.dtype) * l[..., None],
        visible,
        torch.where(rows.argmax < 0, rows.argmax, rows.argmax + part.keys.start),
    )


class _Flow(NamedTuple):
    """Merged results and the gradients that arrive at them, all of this process's rows."""

    out: Tensor
    entropy: Tensor
    lse: Tensor
    collision: Tensor
    d_out: Tensor | None
    d_entropy: Tensor | None
    d_lse: Tensor | None
    d_collision: Tensor | None

    @classmethod
    def of(cls, results: tuple[Tensor, ...], grads: tuple[Tensor | None, ...]) -> "_Flow":
        out, entropy, lse, _, _, collision = results
        d_out, d_entropy, d_lse, _, _, d_collision = grads
        wide = lse.dtype
        d_out = None if d_out is None else d_out.to(wide)
        return cls(out.to(wide), entropy, lse, collision, d_out, d_entropy, d_lse, d_collision)

    def rows(self, run: Run) -> "_Flow":
        return _Flow(*(None if x is None else x[:, :, run.rows] for x in self))  # type: ignore[arg-type]

    def into(self, rows: Rows) -> list[tuple[Tensor, Tensor]]:
        """The differentiable results of a block, each with its gradient."""
        assert rows.lse is not None
        assert rows.entropy is not None
        out, entropy, lse, collision = (
            x.detach() for x in (rows.out, rows.entropy, rows.lse, rows.collision)
        )
        gap = lse - pivot(self.lse)
        share = gap.exp()
        moved = torch.zeros_like(share) if self.d_lse is None else self.d_lse
        pairs = []
        if self.d_out is not None:
            moved = moved + (self.d_out * (out - self.out)).sum(-1)
            pairs.append((rows.out, (share[..., None] * self.d_out).to(out.dtype)))
        if self.d_entropy is not None:
            surprise = -gap.masked_fill(share == 0, 0.0)
            moved = moved + self.d_entropy * (entropy + surprise - self.entropy)
            pairs.append((rows.entropy, share * self.d_entropy))
        if self.d_collision is not None:
            moved = moved + 2 * self.d_collision * (share * collision - self.collision)
            pairs.append((rows.collision, share.square() * self.d_collision))
        return [*pairs, (rows.lse, share * moved)]


def _backward(way: Journey, flow: _Flow, needs: dict[str, bool]) -> tuple[Tensor | None, ...]:
    """Gradients of _INPUTS."""
    call, wide = way.call, _wide(way.call)
    wanted = [name for name in _INPUTS if needs[name]]
    whole = {name: getattr(call, name) for name in _INPUTS}
    total = {
        name: torch.zeros_like(whole[name], dtype=wide) for name in wanted if name not in ("k", "v")
    }
    tables = {
        name: whole[name].detach().requires_grad_()
        for name in ("relative", "additive")
        if needs[name]
    }
    way = replace(way, call=replace_tensors(call, tables))

    def visit(blocks: tuple[range, ...], k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        of_block = {name: torch.zeros_like(x, dtype=wide) for name, x in (("k", k), ("v", v))}
        with torch.enable_grad():
            for part in way.parts(blocks, k, v):
                _add(part, _part_gradients(way, part, flow, wanted), {**total, **of_block})
        return of_block["k"], of_block["v"]

    with torch.autocast(call.q.device.type, enabled=False):
        if needs["k"] or needs["v"]:
            total["k"], total["v"] = way.route.carry_back(call.k, call.v, visit)
        else:
            way.route.carry(call.k, call.v, lambda *block: visit(*block) and None)
    return tuple(total[n].to(whole[n].dtype) if needs[n] else None for n in _INPUTS)


def _part_gradients(
    way: Journey, part: _Part, flow: _Flow, wanted: list[str]
) -> dict[str, Tensor | None]:
    """Gradients of one part: of its own slices, and of tables that all parts share."""
    leaves = {
        name: getattr(part.call, name).detach().requires_grad_()
        for name in wanted
        if name in _SLICED
    }
    rows = way.kernel(replace_tensors(part.call, leaves))
    leaves |= {name: getattr(way.call, name) for name in wanted if name not in _SLICED}
    pairs = [(x, g) for x, g in flow.rows(part.run).into(rows) if x.requires_grad]
    outputs, gradients = zip(*pairs, strict=True)
    found = torch.autograd.grad(outputs, list(leaves.values()), gradients, allow_unused=True)
    return dict(zip(leaves, found, strict=True))


def _add(part: _Part, found: dict[str, Tensor | None], total: dict[str, Tensor]) -> None:
    places = {
        "q": lambda x: x[:, :, part.run.rows],
        "k": lambda x: x[:, :, part.columns],
        "v": lambda x: x[:, :, part.columns],
        "scale": lambda x: of_rows(x, part.run.rows),
        "bias": lambda x: of_keys(of_rows(x, part.run.rows), part.keys),
    }
    for name, gradient in found.items():
        if gradient is not None:
            target = total[name]
            places.get(name, lambda x: x)(target).add_(gradient)
