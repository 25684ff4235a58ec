"""Heads that processes share: a model whose projections are cut along a mesh dimension "tp".

Each process then computes some heads, and all make the same calls in the same order. The records of
a call are gathered from all of them, so that every process has the rows of the whole model, with
the head numbers of the whole model.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from attentropy.core.errors import ArgumentError
from attentropy.core.results import Stats
from attentropy.core.visibility import Visibility
from attentropy.distributed.groups import Peers, peers
from attentropy.distributed.team import Team, Unison
from attentropy.models.intercept.candidates import HEADS_DIMENSION, cut_along, gathering, is_cut
from attentropy.models.record.model_call import ModelCall
from attentropy.models.record.model_masks import ModelMask

_CALLED = ("scale", "bias", "relative", "slopes", "sink", "additive")
S = TypeVar("S", bound="Sequence[Any] | Tensor")


@dataclass(frozen=True, eq=False)
class SharedHeads:
    """The processes that share the heads of a model; the r-th of R holds the r-th part of them.

    Attributes:
        peers: this process among them.
        gathered: modules that have all heads on every process, though their weights are cut.
    """

    peers: Peers
    gathered: frozenset[nn.Module] = frozenset()

    @property
    def size(self) -> int:
        """Number of processes."""
        return self.peers.size

    def cuts(self, module: nn.Module) -> bool:
        """Does each process have some heads of a module only?

        Args:
            module: a module that attends.
        """
        return is_cut(module) and module not in self.gathered

    def own(self, values: S) -> S:
        """This process's part of values for every head.

        Gradients of a tensor are those of all heads: processes gather them.

        Args:
            values: a sequence, or a tensor whose first dimension is that of heads.
        """
        if isinstance(values, Tensor) and values.requires_grad:
            return _OwnPart.apply(values, self)
        each = len(values) // self.size
        return values[self.peers.rank * each : (self.peers.rank + 1) * each]  # type: ignore[return-value]

    def replicated(self, x: Tensor) -> Tensor:
        """x, whose gradient is the sum of what the heads of all processes ask for.

        Args:
            x: the same on every process.
        """
        found: Tensor = _Replicated.apply(x, self)
        return found

    def gather(self, x: Tensor, dim: int = 1) -> Tensor:
        """A tensor with the heads of all processes; each calls it.

        Args:
            x: of this process.
            dim: that of heads.
        """
        parts = self.peers.gather(x.detach().contiguous())
        return torch.cat(parts, dim)

    def whole(
        self, asked: ModelCall, out: Tensor | None, stats: Stats
    ) -> tuple[ModelCall, Tensor | None, Stats]:
        """The call of this process extended to all heads, with its output and statistics.

        Args:
            asked: the call.
            out: its output [B,H,Q,Dv], where it is known.
            stats: the statistics of its rows.
        """
        call, heads = asked.call, asked.call.q.shape[1]
        wide: dict[str, Any] = {name: self.gather(getattr(call, name)) for name in ("q", "k", "v")}
        wide |= {name: self._wide(getattr(call, name), heads, name) for name in _CALLED}
        mask = self._mask(asked.mask, heads)
        seen = mask.seen if call.seen is asked.mask.seen else self._seen(call.seen, heads)
        rows = call.q.shape[:3]
        every = {
            name: None if x is None else self.gather(x.expand(rows))
            for name, x in stats.present().items()
        }
        return (
            asked._replace(call=call._replace(seen=seen, **wide), mask=mask),
            None if out is None else self.gather(out),
            Stats.later(frozenset(every), every.__getitem__),
        )

    def _wide(self, x: Tensor | None, heads: int, name: str = "") -> Tensor | None:
        """With all heads, if it has one entry for each of these."""
        dim = 0 if name in ("relative", "slopes", "sink", "additive") else 1
        return x if x is None or x.shape[dim] != heads else self.gather(x, dim)

    def _seen(self, seen: Visibility, heads: int) -> Visibility:
        names = ("lo", "hi", "table", "added", "counted")
        wide: dict[str, Any] = {n: self._wide(getattr(seen, n), heads) for n in names}
        extent = seen.extent._replace(heads=heads * self.size)
        return seen._replace(extent=extent, **wide)

    def _mask(self, mask: ModelMask, heads: int) -> ModelMask:
        blind = self._wide(mask.blind, heads)
        return replace(mask, seen=self._seen(mask.seen, heads), blind=blind, notes={})


class _OwnPart(torch.autograd.Function):
    """Forward a part, backward the whole gradient."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, shared: SharedHeads) -> Tensor:
        ctx.shared = shared
        own: Tensor = shared.own(values.detach())
        return own.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.shared.gather(grads[0], 0), None


class _Replicated(torch.autograd.Function):
    """Forward nothing, backward a sum over processes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, shared: SharedHeads) -> Tensor:
        ctx.shared = shared
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return torch.stack(ctx.shared.peers.gather(grads[0])).sum(0), None


def team_for(model: nn.Module, team: Team) -> Team:
    """The processes that work on a model: those of a team, or those that share its heads.

    Args:
        model: the model.
        team: what was asked for; nothing but this process where heads are shared.
    """
    shared = shared_heads(model)
    if shared is None:
        return team
    if team.size > 1:
        rule = f"left out for a model whose heads {shared.size} processes share"
        raise ArgumentError("team", rule, f"one of {team.size}")
    return Unison(shared.peers)


def shared_heads(model: nn.Module) -> SharedHeads | None:
    """The processes that share the heads of a model; None if every process has all of them.

    Args:
        model: as transformers loads it with a tp_plan, or one whose parameters are cut along a mesh
            dimension "tp".
    """
    mesh = next(cut_along(model), None)
    if mesh is None:
        return None
    found = peers(mesh[HEADS_DIMENSION] if mesh.ndim > 1 else mesh)
    return None if found.size == 1 else SharedHeads(found, frozenset(gathering(model)))
