"""Forward passes side by side, layer by layer: weights on disk are read once for all of them.

    found = list(in_step(model)(work, items))    # [work(item) for item in items]

Each item is worked on in a thread of its own, and one thread runs at a time. A pass that comes to a
layer whose weights are elsewhere waits there. When all passes wait, the weights that most of them
wait for are read, those passes go through the layer in the order of the items, and the weights are
released. Every pass runs the code of the model, so its numbers are those of a pass alone. A model
whose weights are in memory reads the items one after the other.
"""

import contextvars
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from torch import nn

from attentropy.distributed.team import Run, in_turn
from attentropy.models.intercept.tracking import tracked

T = TypeVar("T")
R = TypeVar("R")
ROOM = 1 << 30  # bytes of hidden states that wait at a time
WIDTH = 4096  # of hidden states, where a model does not say it


class Block:
    """A module whose weights are read when a pass reaches it, and kept until they are released.

    Args:
        module: with everything inside it.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.parts = [(one, hook) for one in module.modules() for hook in _offloading(one)]

    def hold(self) -> None:
        """Read all weights; the hooks of accelerate then find nothing to do."""
        for one, hook in self.parts:
            hook.pre_forward(one)
            hook.offload = False

    def let_go(self) -> None:
        """Drop the weights again."""
        for one, hook in self.parts:
            hook.offload = True
            hook.post_forward(one, ())


def _offloading(module: nn.Module) -> Iterator[Any]:
    """Hooks of accelerate that read the weights of a module when it runs."""
    hook = getattr(module, "_hf_hook", None)
    for one in getattr(hook, "hooks", (hook,)):
        if getattr(one, "offload", False) and hasattr(one, "weights_map"):
            yield one


def blocks(model: nn.Module) -> list[Block]:
    """The units in which weights are read: members of the outermost module lists, and the rest.

    Empty for a model whose weights are all in memory.

    Args:
        model: the model.
    """
    found = [Block(model)] if any(_offloading(model)) else list(_inside(model))
    return [block for block in found if block.parts]


def _inside(module: nn.Module) -> Iterator[Block]:
    for child in module.children():
        if isinstance(module, nn.ModuleList) or any(_offloading(child)):
            yield Block(child)
        else:
            yield from _inside(child)


def in_step(model: nn.Module, *, tokens: Callable[[Any], int] = lambda item: 0) -> Run:
    """How items are worked on: one after the other, or side by side where weights are elsewhere.

    Args:
        model: the model that reads them.
        tokens: total of an item; as many items go side by side as there is memory for their hidden
            states.
    """
    found = blocks(model)
    if not found:
        return in_turn

    def run(work: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
        for group in grouped(items, [tokens(item) for item in items], most_tokens(model)):
            yield from _Walk(model, found).results(work, group)

    return run


def most_tokens(model: nn.Module) -> int:
    """How many tokens go side by side: their hidden states take at most ROOM bytes.

    Args:
        model: the model.
    """
    config: Any = getattr(model, "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    kinds = (p.dtype for p in model.parameters() if p.is_floating_point())
    size = next(kinds, torch.float32).itemsize
    return int(ROOM // (size * (getattr(text, "hidden_size", None) or WIDTH)))


def grouped(items: Sequence[T], sizes: Sequence[int], most: int) -> Iterator[list[T]]:
    """The items in groups of neighbours whose sizes add up to `most` at most, if they can.

    Args:
        items: what to group.
        sizes: of each item.
        most: the largest sum.

    >>> list(grouped("abcd", [2, 2, 3, 9], 4))
    [['a', 'b'], ['c'], ['d']]
    """
    group: list[T] = []
    taken = 0
    for item, size in zip(items, sizes, strict=True):
        if group and taken + size > most:
            yield group
            group, taken = [], 0
        group, taken = [*group, item], taken + size
    if group:
        yield group


class _Stopped(BaseException):
    """Ends a pass that is waiting, when nobody wants its result any more."""


class _PassThread(threading.Thread):
    """One item; runs while it has the turn, and gives the turn back when it waits or ends."""

    def __init__(self, walk: "_Walk", work: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self.walk, self.work = walk, work
        self.go = threading.Semaphore(0)
        self.waits_for: Block | None = None
        self.value: Any = None
        self.error: BaseException | None = None
        self.ended = False
        self.notes: Any = None
        self.modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        self.context = contextvars.copy_context()

    def run(self) -> None:
        """Work on the item, in the settings of the thread that asked for it."""
        grads, inference = self.modes
        try:
            self._pause()
            with torch.inference_mode(inference), torch.set_grad_enabled(grads):
                self.value = self.context.run(self.work)
        except BaseException as error:
            self.error = error
        self.ended = True
        self.walk.turn.release()

    def wait_for(self, block: Block) -> None:
        """Give the turn back until the weights of a block are there.

        Args:
            block: that comes next.
        """
        self.waits_for = block
        self.walk.turn.release()
        self._pause()
        self.waits_for = None

    def _pause(self) -> None:
        self.go.acquire()
        if self.walk.stopped:
            raise _Stopped


class _Walk:
    """Passes on their way through a model; the thread that starts it says whose turn it is."""

    def __init__(self, model: nn.Module, found: list[Block]) -> None:
        self.model, self.blocks = model, found
        self.turn = threading.Semaphore(0)
        self.held: Block | None = None
        self.stopped = False

    def results(self, work: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
        """work(item) of each item; raises in the place of the first item that failed."""
        passes = [_PassThread(self, partial(work, item)) for item in items]
        hooks = [self._stop_at(block) for block in self.blocks]
        try:
            self._run(passes)
        finally:
            for hook in hooks:
                hook.remove()
        for one in passes:
            if one.error is not None:
                raise one.error
            yield one.value

    def _stop_at(self, block: Block) -> Any:
        def before(module: nn.Module, args: Any) -> None:
            me = threading.current_thread()
            if isinstance(me, _PassThread) and me.walk is self and self.held is not block:
                me.wait_for(block)

        return block.module.register_forward_pre_hook(before, prepend=True)

    def _run(self, passes: list[_PassThread]) -> None:
        try:
            for one in passes:
                one.start()
                self._resume(one)
            while waiting := [one for one in passes if not one.ended]:
                self._hold(_most_wanted(waiting))
                for one in waiting:
                    if one.waits_for is self.held:
                        self._resume(one)
        finally:
            self._finish(passes)

    def _resume(self, one: _PassThread) -> None:
        """Let a pass run until it waits or ends; what is recorded meanwhile is its own."""
        attached = tracked(self.model)
        recorder = None if attached is None else attached.recorder
        before = None if recorder is None else recorder.switch(one.notes)
        try:
            one.go.release()
            self.turn.acquire()
        finally:
            if recorder is not None:
                one.notes = recorder.switch(before)

    def _hold(self, block: Block | None) -> None:
        if self.held is not None:
            self.held.let_go()
        self.held = block
        if block is not None:
            block.hold()

    def _finish(self, passes: list[_PassThread]) -> None:
        """End passes that were left waiting: another has raised, or somebody pressed Ctrl-C."""
        self.stopped = True
        started = [one for one in passes if one.ident is not None]
        for one in started:
            one.go.release()
        for one in started:
            one.join()
        self._hold(None)


def _most_wanted(waiting: list[_PassThread]) -> Block | None:
    """The block that most passes wait for; of several, that of the first pass."""
    wanted = [one.waits_for for one in waiting]
    return max(wanted, key=wanted.count)
