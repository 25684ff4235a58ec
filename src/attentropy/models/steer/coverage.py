"""Which attention calls did a change of steer() reach, and which did it leave as they were?

A module that computes its attention by hand can be watched but not steered. Until the first
forward pass has ended, softmax is listened to, so that such modules are told by name: by
UnsupportedError if the change reached no call at all, by a RuntimeWarning if it reached others. A
model that is compiled is not listened to, for its graphs would change with that.
"""

import warnings
import weakref
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from attentropy.core.errors import UnsupportedError
from attentropy.models.intercept import compute, huggingface, sdpa, softmax
from attentropy.models.intercept.registry import Undo
from attentropy.models.record.recorder import each
from attentropy.models.steer.changes import Touch

INSTEAD = "call F.scaled_dot_product_attention or attentropy.attend in the model"


@dataclass(eq=False)
class Reached:
    """A forward hook that tells, after the first pass, what the change did not reach.

    A copy of a steered model is steered, without a handle that undoes it, in this process or in
    the one that it is loaded in.
    """

    touches: list[Touch]
    everywhere: bool
    told: bool = False
    hugging: bool = False
    _listening: Any = field(default=None, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return _steered_copy, (self.touches, self.everywhere, self.told, self.hugging)

    def listen(self) -> None:
        """Notice attention that is computed by hand, until it has been told or nobody is there."""
        self._listening = weakref.finalize(self, softmax.hold())
        self._listening.atexit = False

    def rest(self) -> None:
        """Listen no longer."""
        if self._listening is not None:
            self._listening()

    def __call__(self, model: nn.Module, args: Any, output: Any) -> None:
        if torch.compiler.is_compiling() or self.told:
            return
        if not any(touch.applied for touch in self.touches):
            raise UnsupportedError(self._nothing(type(model).__name__))
        self.told = True
        self.rest()
        alone = {touch.name: touch.left for touch in self.touches if touch.alone}
        if alone:
            text = f"attentropy: steer() left alone {each(alone)}; other attention is changed"
            warnings.warn(f"{text}. To change it too, {INSTEAD}", RuntimeWarning, stacklevel=3)

    def _nothing(self, name: str) -> str:
        why = (
            "it computes attention by hand or with a kernel of its own, which can be watched but "
            f"not steered; undo() and {INSTEAD}"
        )
        if not self.everywhere:
            why = "none of `layers` calls attention itself; watch() says by name which modules do"
        return f"steer() reached no attention call of {name}: {why}"


def is_compiled(model: nn.Module) -> bool:
    """Is it, or a part of it, compiled already?"""
    return any(
        hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
        for module in model.modules()
    )


def hold_all(*, hugging: bool) -> list[Undo]:
    """Take over the calls that steer() changes, until the functions returned are called.

    Args:
        hugging: those of transformers' attention interface, too.
    """
    held: list[Undo] = [sdpa.hold(), compute.hold_steering()]
    return [*held, huggingface.hold()] if hugging else held


def _steered_copy(touches: list[Touch], everywhere: bool, told: bool, hugging: bool) -> Reached:
    reached = Reached(touches, everywhere, told, hugging)
    for undo in hold_all(hugging=hugging):
        weakref.finalize(reached, undo).atexit = False  # with the copy
    if not told:
        reached.listen()
    return reached
