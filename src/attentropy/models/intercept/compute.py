"""Computing a model's attention call: with its change if it is steered, recorded if watched."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from attentropy.core.errors import UnsupportedError
from attentropy.core.resolve import Options
from attentropy.core.weights import Softmax
from attentropy.models.intercept.autograd import in_checkpoint
from attentropy.models.intercept.running import Working
from attentropy.models.record.accumulators import owner_of
from attentropy.models.record.model_call import Asked

CHANGES = "_attentropy_changes"


@dataclass(eq=False)
class Touch:
    """What became of the change of one module.

    `wanted` if it is to change anything, `applied` if it reached a call, `left` says how the
    module attended without it.
    """

    name: str
    wanted: bool = True
    applied: bool = False
    left: str = ""

    @property
    def alone(self) -> bool:
        """Does the module attend unchanged, though it was to be changed?"""
        return self.wanted and not self.applied and bool(self.left)


class Change(Protocol):
    """What steer() makes of a module's own attention calls, and of its calls of attend()."""

    def __call__(self, module: nn.Module, asked: Asked) -> Asked: ...

    def of_attend(
        self, module: nn.Module, q: Tensor, k: Tensor, options: Options
    ) -> tuple[Tensor, Tensor, Options]:
        """Other queries, keys and options of attend()."""
        ...

    def leave(self, how: str) -> None:
        """The module attends in a way, `how`, that cannot be changed."""
        ...


def changes_of(module: nn.Module | None) -> tuple[Change, ...]:
    """What steer() made of a module's attention, in the order of the calls."""
    return () if module is None else module.__dict__.get(CHANGES, ())


def is_touched(module: nn.Module | None) -> bool:
    """Watched or steered?"""
    return owner_of(module) is not None or bool(changes_of(module))


def pass_by(module: nn.Module | None, how: str) -> None:
    """Note that a call of the module is made as it is: neither changed nor recorded."""
    leave(module, how)
    owner = owner_of(module)
    if owner is not None and owner.recorder.wants():
        owner.recorder.missed[owner.name] = how


def leave(module: nn.Module | None, how: str) -> None:
    """Note that a call of the module cannot be changed."""
    for change in changes_of(module):
        change.leave(how)


def run(module: nn.Module, asked: Asked, *, plain: Callable[[], Tensor]) -> Tensor:
    """The output [B,H,Q,Dv] of a call; `plain` computes it as the model would by itself."""
    before, Working.on = Working.on, True
    try:
        return _run(module, asked, plain)
    finally:
        Working.on = before


def _run(module: nn.Module, asked: Asked, plain: Callable[[], Tensor]) -> Tensor:
    changes = changes_of(module)
    for change in changes:
        asked = change(module, asked)
    owner = owner_of(module)
    wanted = owner is not None and owner.recorder.wants()
    if not changes and in_checkpoint():
        if wanted and owner is not None:
            with torch.no_grad():
                owner.recorder.record(owner, asked, *asked.attend())
        return plain()
    if wanted and asked.spread is not None:
        raise UnsupportedError(
            "watch() does not record a model under context_parallel, where a rank has only some "
            "keys; ring_attend() and attentropy.nn return exact statistics"
        )
    attended = asked.attend()
    if wanted and owner is not None:
        owner.recorder.record(owner, asked, *attended)
    return attended.out


@torch.no_grad()
def weights_of(module: nn.Module, asked: Asked) -> Tensor | None:
    """The weights [B,H,Q,K] of a call as it is made, without dropout; None if they are no softmax.

    A query that sees nothing has weights of 0.
    """
    for change in changes_of(module):
        asked = change(module, asked)
    if not isinstance(asked.weights, Softmax | None) or asked.spread is not None:
        return None
    s = asked.logits_at(torch.arange(asked.sizes[2], device=asked.q.device))
    if asked.sink is not None:
        column = asked.sink.to(s.dtype).view(1, -1, 1, 1).expand(*s.shape[:3], 1)
        s = torch.cat([s, column], -1)
    before, Working.on = Working.on, True
    try:
        p = s.softmax(-1).masked_fill(s.isneginf().all(-1, keepdim=True), 0.0)
    finally:
        Working.on = before
    return p[..., : asked.sizes[3]].to(asked.q.dtype)
