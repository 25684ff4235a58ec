"""Which attention calls did a change of steer() reach, and which are unchanged?

A module that computes its attention by hand is steered at its softmax, where a change can act on
the logits alone. Where a change cannot act, the model's own function answers, and the module is
named with the reason: in one RuntimeWarning after the forward pass, in `handle.left_alone` and in
`handle.coverage()`. The first pass runs under a Census, which finds attention that no function of
ours has met.
"""

import warnings
import weakref
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import nn

from attentropy.core.errors import UnsupportedError
from attentropy.models.intercept import compute, early, huggingface, sdpa
from attentropy.models.intercept.by_hand import softmax
from attentropy.models.intercept.candidates import Structure
from attentropy.models.intercept.census import Census, is_new
from attentropy.models.intercept.registry import Undo
from attentropy.models.intercept.tracking import STATE, changes_of, in_backward
from attentropy.models.record.recorder import each
from attentropy.models.steer.changes import Touch

INSTEAD = "call F.scaled_dot_product_attention or attentropy.attend in the model"

_out_of_reach: "weakref.WeakKeyDictionary[nn.Module, str]" = weakref.WeakKeyDictionary()


class SteeredModule(NamedTuple):
    """What a change has done in one module.

    Attributes:
        module: its name.
        status: "changed"; "partly", if some of its calls are; "unchanged"; or "not run".
        why: the reason why calls are unchanged; "" if none is.
    """

    module: str
    status: str
    why: str


def covered(touches: list[Touch]) -> list[SteeredModule]:
    """What a change has done in each module that attended.

    Args:
        touches: the outcome for each module that was to be changed.
    """
    status = {(True, False): "changed", (True, True): "partly", (False, True): "unchanged"}
    return [
        SteeredModule(touch.name, status[touch.applied, bool(touch.left)], touch.left)
        for touch in touches
        if touch.wanted and (touch.applied or touch.left)
    ]


@dataclass(eq=False)
class Reached:
    """A forward hook that reports, once for each module, what the change did not reach.

    A copy of a steered model is steered too, and no handle undoes it, in this process or in the one
    that loads it.
    """

    touches: list[Touch]
    name: str
    everywhere: bool
    hugging: bool = False
    counts: bool = False
    told: set[str] = field(default_factory=set)
    passed: bool = False
    census: Census | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        given = self.touches, self.name, self.everywhere, self.hugging, self.told, self.passed
        return _steered_copy, given

    def __call__(self, model: nn.Module, args: Any, output: Any) -> None:
        if torch.compiler.is_compiling():
            return
        self.end()
        new = {
            touch.name: touch.left
            for touch in self.touches
            if touch.left and touch.wanted and touch.name not in self.told
        }
        if new or not self.passed:
            self.passed = True
            self.told.update(new)
            self._tell(new)

    def _tell(self, new: dict[str, str]) -> None:
        text = self._nothing()
        if text is None and new:
            text = f"steer() left alone {each(new)}; other attention is changed"
            text += f". To change it too, {INSTEAD}" if _is_other(new) else ""
        if text is not None:
            warnings.warn(f"attentropy: {text}", RuntimeWarning, stacklevel=4)

    def require(self) -> None:
        """Raise UnsupportedError if forward passes ran and nothing is changed."""
        text = self._nothing() if self.passed else None
        if text is not None:
            raise UnsupportedError(text)

    def _nothing(self) -> str | None:
        """Why nothing is changed, in a sentence; None if something is, or nothing was to be."""
        wanted = [touch for touch in self.touches if touch.wanted]
        if not wanted or any(touch.applied for touch in wanted):
            return None
        left = {touch.name: touch.left for touch in wanted if touch.left}
        why = each(left) + (f"; undo() and {INSTEAD}" if _is_other(left) else "")
        if not left and self.everywhere:
            why = f"it may have none, or a kernel of its own; undo() and {INSTEAD}"
        elif not left:
            why = "none of `layers` calls attention itself; watch() says by name which modules do"
        return f"steer() reached no attention call of {self.name}, which runs unchanged: {why}"

    def begin(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        """Count the operators of the first forward pass of its kind.

        Args:
            model: the model.
            args: positional arguments of its call.
            kwargs: keyword arguments of its call.
        """
        if not self.counts or self.census is not None or STATE.census is not None or in_backward():
            return
        names = tuple(touch.name for touch in self.touches if touch.wanted)
        if is_new(model, args, kwargs, reader=names):
            STATE.census = self.census = Census()
            self.census.__enter__()

    def end(self) -> None:
        """Note modules whose attention was met nowhere, when a pass has ended or failed."""
        census = self.census
        if census is not None and census.is_own:
            self.census = STATE.census = None
            census.__exit__(None, None, None)
            for module, how in census.slipped():
                if not any(change.touch.left for change in changes_of(module)):
                    _out_of_reach[module] = how
                    compute.leave(module, how)


def _is_other(left: dict[str, str]) -> bool:
    """Would another way to attend help, for one of the modules?"""
    return not all(how.startswith(compute.FAILS) for how in left.values())


def out_of_reach(module: nn.Module) -> str:
    """How a module attends where no change can act, as a census has found; "" if it has not.

    Args:
        module: any module.
    """
    return _out_of_reach.get(module, "")


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


def _steered_copy(
    touches: list[Touch],
    name: str,
    everywhere: bool,
    hugging: bool,
    told: set[str],
    passed: bool,
) -> Reached:
    reached = Reached(touches, name, everywhere, hugging, told=told, passed=passed)
    for undo in hold_all(hugging=hugging):
        weakref.finalize(reached, undo).atexit = False  # with the copy
    return reached
