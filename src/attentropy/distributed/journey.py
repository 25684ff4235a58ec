"""Attention of the rows of this process over keys that travel, by any kernel for each block.

Forward: each block gives rows, and rows merge. Backward: blocks travel once more; each is computed
again, and what it added to the merged sums is differentiated (see merging). Only rows of this
process and two blocks are in memory at a time.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attentropy.core.call import Call, Rows, replace_tensors
from attentropy.core.visibility import Limits, Span
from attentropy.core.weights import L1, L2, Kernelised, Linear, ReluSquared, Weights, own
from attentropy.distributed.cache import StayRoute
from attentropy.distributed.failures import telling
from attentropy.distributed.merging import Kept, Merging, StateMerging, SumMerging
from attentropy.distributed.parts import RowRun, cut
from attentropy.distributed.transport import GatherRoute, RingRoute
from attentropy.kernels.autograd import once

Route = RingRoute | GatherRoute | StayRoute
_INPUTS = ("q", "k", "v", "scale", "bias", "relative", "additive")
_SLICED = ("q", "k", "v", "scale", "bias")


@dataclass(frozen=True, eq=False)
class Journey:
    """A call over the keys of all ranks, the route of the keys, and the kernel for each part.

    Attributes:
        call: the rows of this rank over all keys.
        runs: its rows that stand together.
        limits: the range of keys that each run looks at.
        route: how keys travel.
        kernel: computes one part.
        merging: how rows of parts become rows of the whole.
    """

    call: Call
    runs: tuple[RowRun, ...]
    limits: tuple[Limits, ...]
    route: Route
    kernel: Callable[[Call], Rows]
    merging: Merging

    def parts(self, blocks: tuple[range, ...], k: Tensor, v: Tensor) -> Iterator["_PartCall"]:
        """Calls of runs of rows on runs of keys; those in which every key is hidden are left out.

        Args:
            blocks: runs of keys that are here.
            k: these keys.
            v: these values.
        """
        first = 0
        for keys in blocks:
            columns = slice(first, first + len(keys))
            first = columns.stop
            for index, (run, limits) in enumerate(zip(self.runs, self.limits, strict=True)):
                if limits.hide(keys):
                    continue
                k_part, v_part = k[:, :, columns], v[:, :, columns]
                call = cut(self.call, run, keys, whole=limits.show(keys), k=k_part, v=v_part)
                if call.seen.shape != "other" or bool(call.visible.any()):
                    if not call.weights.probabilities:
                        # what divides by the number of visible keys means those of the whole
                        count = Span(queries=run.rows).of(self.call.visible)
                        call = call._replace(seen=call.seen._replace(counted=count))
                    yield _PartCall(index, run, keys, columns, call)


@dataclass(frozen=True, eq=False)
class _PartCall:
    index: int
    run: RowRun
    keys: range
    columns: slice
    call: Call


def journey(
    call: Call,
    rows: tuple[range, ...],
    *,
    shift: int,
    route: Route,
    kernel: Callable[[Call], Rows],
) -> Journey:
    """The journey of a call whose rows are these queries of the whole sequence.

    Args:
        call: whose rows are queries of this rank, and whose mask is over all keys.
        rows: which queries of the whole sequence they are.
        shift: number of keys before the first query of the whole.
        route: how keys travel.
        kernel: computes one part.
    """
    runs, first = [], 0
    for run in rows:
        runs.append(RowRun(slice(first, first + len(run)), run.start + shift))
        first += len(run)
    limits = tuple(call.seen.select(Span(queries=run.rows)).limits() for run in runs)
    merging, weights = _merging(call.weights)
    call = call._replace(weights=weights)
    return Journey(call, tuple(runs), limits, route, kernel, merging)


def _merging(weights: Weights) -> tuple[Merging, Weights]:
    """How rows merge, and the weights of a part, which are not normalised where sums are."""
    match weights:
        case L1() | L2():
            return SumMerging(weights), weights.of
        case Kernelised():
            return SumMerging(weights), Linear()
        case ReluSquared() | Linear():  # divided by the visible keys of the whole in each part
            return SumMerging(Linear()), weights
        case _ if own(weights) is not None:
            return SumMerging(Linear()), weights
        case _:
            return StateMerging(), weights


def attend(way: Journey) -> Rows:
    """Output and statistics of every row of this process; differentiable once.

    Args:
        way: the journey.
    """
    inputs = (getattr(way.call, name) for name in _INPUTS)
    kept: Kept = _Travelling.apply(way, *inputs)
    return way.merging.rows(way.call, kept)


class _Travelling(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, way: Journey, *inputs: Tensor | None) -> Kept:
        kept = held(way)
        ctx.way = replace(way, call=replace_tensors(way.call, dict.fromkeys(_INPUTS)))
        ctx.save_for_backward(*inputs, *kept)
        ctx.mark_non_differentiable(*kept[way.merging.sums :])
        return kept

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        saved = ctx.saved_tensors
        inputs, kept = saved[: len(_INPUTS)], saved[len(_INPUTS) :]
        call = replace_tensors(ctx.way.call, dict(zip(_INPUTS, inputs, strict=True)))
        needs = dict(zip(_INPUTS, ctx.needs_input_grad[1:], strict=True))
        flowing = _Flowing(kept, grads[: ctx.way.merging.sums])
        found = _backward(replace(ctx.way, call=call), flowing, needs)
        return None, *once("ring", *found, anchors=(*saved, *grads))


class _Flowing(NamedTuple):
    """What was kept of all keys, and the gradients of its sums."""

    kept: Kept
    grads: Kept

    def of(self, rows: slice) -> "_Flowing":
        """The same for some of the rows."""
        kept, grads = (tuple(x[:, :, rows] for x in part) for part in self)
        return _Flowing(kept, grads)


def _wide(call: Call) -> torch.dtype:
    return torch.float64 if call.q.dtype == torch.float64 else torch.float32


def _told(route: Route) -> AbstractContextManager[None]:
    """Others hear of what is raised here; those of a ring wait for messages of this rank."""
    return telling(route.peers.group, hang_up=isinstance(route, RingRoute))


def held(way: Journey) -> Kept:
    """What merging keeps of all parts, in float32 or better.

    Args:
        way: the journey.
    """
    call, merging = way.call, way.merging
    like = call.q.new_empty(0, dtype=_wide(call))

    def empty(rows: int) -> Kept:
        return merging.empty((*call.q.shape[:2], rows), call.v.shape[-1], like=like)

    kept = [empty(run.count) for run in way.runs]

    def visit(blocks: tuple[range, ...], k: Tensor, v: Tensor) -> None:
        for part in way.parts(blocks, k, v):
            rows, before = way.kernel(part.call), kept[part.index]
            kept[part.index] = merging.add(before, part.call, rows, first=part.keys.start)

    with torch.autocast(call.q.device.type, enabled=False), _told(way.route):
        way.route.carry(call.k, call.v, visit)
    return tuple(torch.cat(x, 2) for x in zip(empty(0), *kept, strict=True))


def _backward(way: Journey, flowing: _Flowing, needs: dict[str, bool]) -> tuple[Tensor | None, ...]:
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
                _add(part, _part_gradients(way, part, flowing, wanted), {**total, **of_block})
        return of_block["k"], of_block["v"]

    with torch.autocast(call.q.device.type, enabled=False), _told(way.route):
        if needs["k"] or needs["v"]:
            total["k"], total["v"] = way.route.carry_back(call.k, call.v, visit)
        else:
            way.route.carry(call.k, call.v, lambda *block: visit(*block) and None)
    return tuple(total[n].to(whole[n].dtype) if needs[n] else None for n in _INPUTS)


def _part_gradients(
    way: Journey, part: _PartCall, flowing: _Flowing, wanted: list[str]
) -> dict[str, Tensor | None]:
    """Gradients of one part: of its own slices, and of tables that all parts share."""
    leaves = {
        name: getattr(part.call, name).detach().requires_grad_()
        for name in wanted
        if name in _SLICED
    }
    call = replace_tensors(part.call, leaves)
    kept, grads = flowing.of(part.run.rows)
    added = way.merging.added(kept, call, way.kernel(call))
    leaves |= {name: getattr(way.call, name) for name in wanted if name not in _SLICED}
    pairs = [(x, g) for x, g in zip(added, grads, strict=True) if x.requires_grad]
    outputs, gradients = zip(*pairs, strict=True)
    found = torch.autograd.grad(outputs, list(leaves.values()), gradients, allow_unused=True)
    return dict(zip(leaves, found, strict=True))


def _add(part: _PartCall, found: dict[str, Tensor | None], total: dict[str, Tensor]) -> None:
    span = Span(queries=part.run.rows, keys=slice(part.keys.start, part.keys.stop))
    places = {
        "q": lambda x: x[:, :, part.run.rows],
        "k": lambda x: x[:, :, part.columns],
        "v": lambda x: x[:, :, part.columns],
        "scale": span.of,
        "bias": span.of,
    }
    for name, gradient in found.items():
        if gradient is not None:
            target = total[name]
            places.get(name, lambda x: x)(target).add_(gradient)
