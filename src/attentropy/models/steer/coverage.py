"""Which attention calls did a change of steer() reach, and which are unchanged?

A module that computes its attention by hand is steered at its softmax, where a change can act on
the logits alone. After the first forward pass, modules that the change did not reach are named: in
an UnsupportedError if the change reached no call at all, in a RuntimeWarning if it reached others.
"""

import warnings
import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from attentropy.core.errors import UnsupportedError
from attentropy.models.intercept import compute, early, huggingface, sdpa
from attentropy.models.intercept.by_hand import softmax
from attentropy.models.intercept.candidates import Structure
from attentropy.models.intercept.registry import Undo
from attentropy.models.record.recorder import each
from attentropy.models.steer.changes import Touch

INSTEAD = "call F.scaled_dot_product_attention or attentropy.attend in the model"


@dataclass(eq=False)
class Reached:
    """A forward hook that reports, after the first pass, what the change did not reach.

    A copy of a steered model is steered too, and no handle undoes it, in this process or in the one
    that loads it.
    """

    touches: list[Touch]
    everywhere: bool
    told: bool = False
    hugging: bool = False

    def __reduce__(self) -> tuple[Any, ...]:
        return _steered_copy, (self.touches, self.everywhere, self.told, self.hugging)

    def __call__(self, model: nn.Module, args: Any, output: Any) -> None:
        if torch.compiler.is_compiling() or self.told:
            return
        if not any(touch.applied for touch in self.touches):
            raise UnsupportedError(self._nothing(type(model).__name__))
        self.told = True
        alone = {touch.name: touch.left for touch in self.touches if touch.alone}
        if alone:
            text = f"attentropy: steer() left alone {each(alone)}; other attention is changed"
            warnings.warn(f"{text}. To change it too, {INSTEAD}", RuntimeWarning, stacklevel=3)

    def _nothing(self, name: str) -> str:
        why = (
            "it attends in a way that the change cannot act on, or with a kernel of its own; "
            f"undo() and {INSTEAD}"
        )
        if not self.everywhere:
            why = "none of `layers` calls attention itself; watch() says by name which modules do"
        return f"steer() reached no attention call of {name}: {why}"


def hold_all(model: nn.Module | None = None, *, hugging: bool) -> list[Undo]:
    """Take over the calls that steer() changes, until the functions returned are called.

    Args:
        model: names that its own code has bound early are taken over, too.
        hugging: calls of transformers' attention interface, too.
    """
    holds = (sdpa.hold, softmax.hold, early.hold_kernels)
    kinds = frozenset[type[nn.Module]]() if model is None else Structure.of(model).kinds
    held: list[Undo] = [compute.hold_steering(), *(hold(kinds) for hold in holds)]
    return [*held, huggingface.hold()] if hugging else held


def _steered_copy(touches: list[Touch], everywhere: bool, told: bool, hugging: bool) -> Reached:
    reached = Reached(touches, everywhere, told, hugging)
    for undo in hold_all(hugging=hugging):
        weakref.finalize(reached, undo).atexit = False  # with the copy
    return reached
