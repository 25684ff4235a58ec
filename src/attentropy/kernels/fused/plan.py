"""What calls of one kind share, worked out once: a plan runs one with two allocations.

Python takes longer to describe a small call than the library takes to compute it. A plan holds the
description; each call adds addresses, in struct Places of cpp/args.h.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attentropy.core.call import Call
from attentropy.core.results import Attended, Stats
from attentropy.core.visibility import Visibility
from attentropy.kernels.autograd import once, unbatched
from attentropy.kernels.fused import kernel as fused
from attentropy.kernels.fused import library
from attentropy.kernels.fused.block import Fields, Struct, block
from attentropy.kernels.fused.summary import Summing
from attentropy.kernels.packing import INPUTS
from attentropy.kernels.softmax_results import FLOWING, SoftmaxResults

_PLACES = Struct("Places").pack
_BOUNDS = ("lo", "hi", "mask")
_SEEN = Call._fields.index("seen") - 3  # among the fields after q, k and v
_ARGMAX = 2  # rows of floats that the int64 argmax takes
_FLOATS = ("entropy", "lse", "max_logit", "collision", "varentropy", "log_l")
_ROW = {name: row for row, name in enumerate(_FLOATS, start=_ARGMAX)}
_NONE = frozenset(("sink_mass", "mass"))  # softmax weights without a sink have neither


class Room(NamedTuple):
    """Sizes and strides of a tensor [B,H,N,D] that a pass writes."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def beside(cls, x: Tensor, width: int) -> "Room":
        """Room that is laid out as x is, with another width.

        Args:
            x: queries, keys or values.
            width: the last dimension.
        """
        made = fused.empty_like_rows(x, width)
        return cls(tuple(made.shape), made.stride())


@dataclass(frozen=True, eq=False)
class CallPlan:
    """All of a call but its queries, keys and values; they must look like those it was made for.

    Attributes:
        rest: the fields of the call after q, k and v.
        fields: of struct Args, without addresses of q, k, v and results.
        args: the struct.
        names: of the statistics that are asked for, and "visible".
        visible: number of visible keys of each row, broadcastable to [B,H,Q].
        library: that it was made for.
        dtype: of queries, keys and values.
        out: room for the output.
        rows: room for the statistics, [8,B,H,Q].
        grads: room for the gradients of q, k and v.
    """

    rest: tuple[Any, ...]
    fields: Fields
    args: bytes
    names: frozenset[str]
    visible: Tensor
    library: library.Library
    dtype: torch.dtype
    out: Room
    rows: Room
    grads: tuple[Room, ...]

    @classmethod
    def of(cls, call: Call) -> "CallPlan | None":
        """The plan of a call that the kernel serves in one pass over inputs as they are, or None.

        Args:
            call: a resolved call, whose other tensors nobody writes to or differentiates.
        """
        lib = fused.loaded()
        ready = fused.readable(call, lib)
        if call.seen.predicate is not None:  # two intervals are two passes
            return None
        if any(_differ(*pair) for pair in zip(ready[:3], call[:3], strict=True)):
            return None
        q, k, v = call[:3]
        out, *grads = (Room.beside(x, y.shape[3]) for x, y in ((q, v), (q, q), (k, k), (v, v)))
        fields = fused.described(ready) | dict.fromkeys(("out", "dout"), (0, *out.strides[:3]))
        for name, room in zip("qkv", grads, strict=True):
            fields[f"d{name}"] = (0, *room.strides[:3])
        return cls(
            rest=ready[3:],
            fields=fields,
            args=block(fields),
            names=call.asked | {"visible"},
            visible=call.visible,
            library=lib,
            dtype=q.dtype,
            out=out,
            rows=Room.beside(q.new_empty(8, *q.shape[:2], 0), q.shape[2]),
            grads=tuple(grads),
        )

    def call(self, q: Tensor, k: Tensor, v: Tensor) -> Call:
        """The call that these tensors make.

        Args:
            q: queries.
            k: keys.
            v: values.
        """
        return Call(q, k, v, *self.rest)

    def seeing(self, seen: Visibility) -> "CallPlan":
        """The plan of the same calls where queries see other keys.

        Args:
            seen: bounds, or a table, which nobody writes to.
        """
        fields = {name: words for name, words in self.fields.items() if name not in _BOUNDS}
        fields |= fused.bounds_of(seen)
        rest = (*self.rest[:_SEEN], seen, *self.rest[_SEEN + 1 :])
        return replace(self, rest=rest, fields=fields, args=block(fields), visible=seen.visible)

    def serves(self, q: Tensor, k: Tensor, v: Tensor) -> bool:
        """Whether the library that it was made for reads them as they are: bf16 in words of two.

        Args:
            q: queries.
            k: keys.
            v: values.
        """
        if self.library is not library.serving:
            return False
        if self.dtype is torch.float32:
            return True
        return not (q.data_ptr() | k.data_ptr() | v.data_ptr()) % 4

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Attended:
        """Output and statistics, which are taken out of the rows when they are read.

        Args:
            q: queries.
            k: keys.
            v: values.
        """
        if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
            out, rows = _planned(self, q, k, v)
        else:
            out, rows = self.forward(q, k, v)
        return Attended(out, Stats.later(self.names, _RowsRead(self.visible, rows).read))

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Output, and rows [8,B,H,Q]. No autograd.

        Args:
            q: queries.
            k: keys.
            v: values.
        """
        out = q.new_empty_strided(*self.out)
        rows = q.new_empty_strided(*self.rows, dtype=torch.float32)
        at = q.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr(), rows.data_ptr()
        self.library.planned_forward(self.args, _PLACES(*_pool(), *at, 0, 0, 0, 0, 0, 0, 0))
        return out, rows

    def sum(
        self, q: Tensor, k: Tensor, v: Tensor, summing: Summing, into: Sequence[Tensor]
    ) -> Tensor:
        """The output; its rows are added up. No autograd.

        Args:
            q: queries.
            k: keys.
            v: values.
            summing: which rows are summed.
            into: the sums [N + H,H] and the largest logits [H], float64 and contiguous.
        """
        out = q.new_empty_strided(*self.out)
        at = q.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr(), 0
        to = summing.address, into[0].data_ptr(), into[1].data_ptr()
        self.library.planned_forward(self.args, _PLACES(*_pool(), *at, *to, 0, 0, 0, 0))
        return out

    def backward(self, saved: tuple[Tensor, ...], dout: Tensor) -> tuple[Tensor, ...]:
        """Gradients of q, k and v by way of the output. No autograd.

        Args:
            saved: q, k, v, the output and the rows.
            dout: the gradient of the output.
        """
        q, k, v, out, rows = saved
        if dout.stride() != self.out.strides or dout.dtype is not q.dtype or dout.data_ptr() % 4:
            dout = q.new_empty_strided(*self.out).copy_(dout)
        dq, dk, dv = [q.new_empty_strided(*room) for room in self.grads]
        at = q.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr(), rows.data_ptr()
        to = dout.data_ptr(), dq.data_ptr(), dk.data_ptr(), dv.data_ptr()
        self.library.planned_backward(self.args, _PLACES(*_pool(), *at, 0, 0, 0, *to))
        return dq, dk, dv


def _pool() -> tuple[int, int]:
    return torch.get_num_threads(), library.pool().address


class _ByPlan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plan: CallPlan, q: Tensor, k: Tensor, v: Tensor) -> Any:
        out, rows = plan.forward(q, k, v)
        ctx.plan = plan
        ctx.save_for_backward(q, k, v, out, rows)
        ctx.set_materialize_grads(False)
        return out, rows

    @staticmethod
    def backward(ctx: Any, dout: Tensor | None, drows: Tensor | None) -> Any:
        plan, saved = ctx.plan, ctx.saved_tensors
        unbatched(fused.name, dout, drows)
        if drows is None and dout is not None:
            found = plan.backward(saved, dout)
        else:
            found = _by_statistics(plan, saved, dout, drows)
        if torch.is_grad_enabled():
            found = once(fused.name, *found, anchors=(*saved, dout, drows))
        return None, *found


# Function.apply looks for transforms of torch.func first; a planned call is under none of them.
_planned = super(torch.autograd.Function, _ByPlan).apply


def _by_statistics(
    plan: CallPlan, saved: tuple[Tensor, ...], dout: Tensor | None, drows: Tensor | None
) -> tuple[Tensor | None, ...]:
    """Gradients of q, k and v where statistics have gradients, or nothing has one."""
    q, k, v, out, rows = saved
    grads: dict[str, Tensor | None] = {"out": dout}
    if drows is not None:
        rowwise = {name: drows[_ROW[name]] for name in FLOWING[1:]}
        grads |= {name: g for name, g in rowwise.items() if bool(g.any())}  # 0 * inf would be NaN
    read = _RowsRead(plan.visible, rows)
    floats = {name: rows[row] for name, row in _ROW.items()}
    results = SoftmaxResults(out=out, argmax=read.argmax(), **floats)
    needs = {name: name in ("q", "k", "v") for name in INPUTS}
    return fused.backward(plan.call(q, k, v), results, grads, needs)[:3]


class _RowsRead(NamedTuple):
    """Takes statistics out of rows, by name.

    Attributes:
        visible: number of visible keys, broadcastable to [B,H,Q].
        rows: [8,B,H,Q], what a forward pass wrote.
    """

    visible: Tensor
    rows: Tensor

    def read(self, name: str) -> Tensor | None:
        """A statistic; differentiable where the rows are.

        Args:
            name: of a field of Stats.
        """
        if name == "visible":  # the caller may write to it
            return self.visible.clone().expand(self.rows.shape[1:])
        if name == "argmax":
            return self.argmax()
        if name in _NONE:
            return None
        row = self.rows[_ROW[name]]
        return row if name in FLOWING else row.detach()

    def argmax(self) -> Tensor:
        """The key that has the largest logit, int64 [B,H,Q]."""
        shape = self.rows.shape[1:]
        words = self.rows.detach().view(-1)[: _ARGMAX * shape.numel()]
        return words.view(torch.int64).view(shape)


def _differ(x: Tensor, y: Tensor) -> bool:
    return x.data_ptr() != y.data_ptr() or x.dtype is not y.dtype
