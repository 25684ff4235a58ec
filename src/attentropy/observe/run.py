"""Computing a model's attention call: with its change if it is steered, recorded if watched."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from attentropy.observe.asked import Asked
from attentropy.observe.autograd_state import in_checkpoint
from attentropy.observe.slots import owner_of

CHANGE = "_attentropy_change"

Change = Callable[[Asked], Asked]


def change_of(module: nn.Module | None) -> Change | None:
    """What steer() made of a module's attention."""
    return None if module is None else module.__dict__.get(CHANGE)


def is_touched(module: nn.Module | None) -> bool:
    """Watched or steered?"""
    return owner_of(module) is not None or change_of(module) is not None


def run(module: nn.Module, asked: Asked, *, plain: Callable[[], Tensor]) -> Tensor:
    """The output [B,H,Q,Dv] of a call; `plain` computes it as the model would by itself."""
    change = change_of(module)
    if change is not None:
        asked = change(asked)
    owner = owner_of(module)
    wanted = owner is not None and owner.recorder.wants()
    if change is None and in_checkpoint():
        if wanted and owner is not None:
            with torch.no_grad():
                owner.recorder.record(owner, asked, *asked.attend())
        return plain()
    attended = asked.attend()
    if wanted and owner is not None:
        owner.recorder.record(owner, asked, *attended)
    return attended.out
