"""Which watched or steered module is running, and what is attached to it.

While a module is watched or steered, its class has a `_call_impl` that keeps the module on a stack
of its thread for as long as its forward runs, whatever ends it: torch calls hooks after an
Exception, but not after KeyboardInterrupt, SystemExit or GeneratorExit.
"""

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from attentropy.core.errors import AttentropyError
from attentropy.models.intercept import registry

if TYPE_CHECKING:
    from attentropy.models.intercept.census import Census
    from attentropy.models.record.accumulators import Owner
    from attentropy.models.record.recorder import Recorder
    from attentropy.models.steer.changes import Change
    from attentropy.models.steer.context_parallel import Spreading
    from attentropy.models.steer.coverage import Reached

TRACKED = "_attentropy_tracked"


class _ThreadState(threading.local):
    def __init__(self) -> None:
        self.running: list[nn.Module] = []
        self.computing = False
        self.held: list[Callable[[], None]] | None = None
        self.census: Census | None = None


STATE = _ThreadState()
"""Of this thread: the tracked modules that are `running`, innermost last; `computing` while
attentropy itself computes, whose softmax is none of the model; `held` what was observed of a call
that is being verified; `census` counts the operators of the first pass of a steered model.
"""


@contextmanager
def computing() -> Iterator[None]:
    """Attention and softmax inside are those of attentropy, not of the model."""
    before, STATE.computing = STATE.computing, True
    try:
        yield
    finally:
        STATE.computing = before


@contextmanager
def holding() -> Iterator[list[Callable[[], None]]]:
    """Observations inside are not recorded at once; functions that record them are returned."""
    before, STATE.held = STATE.held, []
    try:
        yield STATE.held
    finally:
        STATE.held = before


def current() -> nn.Module | None:
    """The innermost tracked module that is running."""
    return STATE.running[-1] if STATE.running else None


def in_backward() -> bool:
    """Inside a backward pass: what runs forward there is a recomputation by checkpointing."""
    if torch.compiler.is_compiling():
        return False
    return bool(torch._C._current_graph_task_id() != -1)


def in_checkpoint() -> bool:
    """Saved tensors are being intercepted, as non-reentrant checkpointing does in its forward.

    It compares what the recomputation saves with what the forward saved, so both must run the
    same attention, and the recomputation may come after watching has ended.
    """
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return False
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


class Tracked:
    """What is attached to a module: its part in a watch, and how it is steered.

    Attributes:
        owner: the record of a watched module, see attentropy.models.record.recorder.
        recorder: of the watch whose forward passes start with this module.
        changes: what steer() changes in the module's attention, in the order of the calls.
        ring: sends the module's attention around a ring of processes.
        reached: what changes of the model whose forward passes start with this module have reached.
    """

    def __init__(self, kind: type[nn.Module], *, is_wrapper: bool = False) -> None:
        self.kind, self.is_wrapper = kind, is_wrapper
        self.owner: Owner | None = None
        self.recorder: Recorder | None = None
        self.changes: tuple[Change, ...] = ()
        self.ring: Spreading | None = None
        self.reached: tuple[Reached, ...] = ()
        self.restore: registry.Undo | None = None
        self.users = 0

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy of a steered module is steered; one of a watched module is not watched."""
        return _copied, (self.kind, self.changes, self.ring)

    def steer(self, change: "Change") -> registry.Undo:
        """Add a change, and return a function that removes it; others stay in their order.

        Args:
            change: what steer() was asked for.
        """
        with registry.alone():
            self.changes = (*self.changes, change)

        def undo() -> None:
            with registry.alone():
                self.changes = tuple(one for one in self.changes if one is not change)

        return undo

    def follow(self, reached: "Reached") -> registry.Undo:
        """Tell it of forward passes, until the function returned is called.

        Args:
            reached: what a change of the model has reached.
        """
        with registry.alone():
            self.reached = (*self.reached, reached)

        def undo() -> None:
            with registry.alone():
                self.reached = tuple(one for one in self.reached if one is not reached)

        return undo

    def begin(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Tell the watch and changes that a forward pass of the whole model starts.

        Args:
            module: the model.
            args: positional arguments of the call.
            kwargs: keyword arguments of the call.
        """
        if torch.compiler.is_compiling():
            return
        if self.recorder is not None:
            self.recorder.begin(module, args, kwargs)
        for one in self.reached:
            one.begin(module, args, kwargs)

    def end(self) -> None:
        """Tell them that the forward pass has ended, by itself or by an error."""
        if torch.compiler.is_compiling():
            return
        for one in self.reached:
            one.end()
        if self.recorder is not None:
            self.recorder.end()


def tracked(module: nn.Module | None) -> Tracked | None:
    """What is attached to a module; None if it is neither watched nor steered."""
    return None if module is None else module.__dict__.get(TRACKED)


def owner_of(module: nn.Module | None) -> "Owner | None":
    """The record of a watched module, or None."""
    attached = None if module is None else module.__dict__.get(TRACKED)
    return None if attached is None else attached.owner


def changes_of(module: nn.Module | None) -> tuple["Change", ...]:
    """The changes that steer() makes to a module's attention."""
    attached = tracked(module)
    return () if attached is None else attached.changes


def track(chosen: Sequence[nn.Module]) -> tuple[list[Tracked], registry.Undo]:
    """Track when modules run; returns what is attached to each, and a function that ends it.

    Args:
        chosen: the modules.
    """
    with registry.alone():
        kinds = dict.fromkeys(type(module) for module in chosen)
        kinds.pop(nn.Module, None)  # a bare one holds others, and is never called
        held = [_hold_calls(kind) for kind in kinds]
        attached = [tracked(module) or _attach(module) for module in chosen]
        for one in attached:
            one.users += 1

    def untrack() -> None:
        with registry.alone():
            for module, one in zip(chosen, attached, strict=True):
                _detach(module, one)
            for release in held:
                release()

    return attached, untrack


def watch(attached: Sequence[Tracked], owners: Sequence["Owner"]) -> registry.Undo:
    """Attach the records of a watch; returns a function that detaches them.

    Args:
        attached: what is attached to the modules.
        owners: a record for each.
    """
    pairs = list(zip(attached, owners, strict=True))
    with registry.alone():
        for one, owner in pairs:
            if one.owner is not None:
                raise AttentropyError(f"{owner.name or 'the model'} is being watched already")
        for one, owner in pairs:
            one.owner = owner

    def detach() -> None:
        with registry.alone():
            for one, owner in pairs:
                if one.owner is owner:
                    one.owner = None

    return detach


def _attach(module: nn.Module) -> Tracked:
    attached = Tracked(type(module), is_wrapper=hasattr(module, "_orig_mod"))
    module.__dict__[TRACKED] = attached
    compiled = module.__dict__.get("_compiled_call_impl")
    if compiled is not None:  # Module.compile() has bound the class's own _call_impl
        call = partial(_running(lambda self, *args, **kwargs: compiled(*args, **kwargs)), module)
        attached.restore = registry.replace(module, "_compiled_call_impl", call)
    return attached


def _detach(module: nn.Module, attached: Tracked) -> None:
    attached.users -= 1
    if attached.users:
        return
    if tracked(module) is attached:
        del module.__dict__[TRACKED]
    if attached.restore is not None:
        attached.restore()


def _hold_calls(kind: type[nn.Module]) -> registry.Undo:
    def apply() -> registry.Undo:
        return registry.replace(kind, "_call_impl", _running(_plain_call(kind)))

    return registry.hold(("calls of", kind), apply)


def _plain_call(kind: type[nn.Module]) -> Callable[..., Any]:
    """The `_call_impl` that a class has without tracking."""
    found = (base.__dict__.get("_call_impl") for base in kind.__mro__)
    return next(x for x in found if x is not None and getattr(x, "__module__", "") != __name__)


def _running(original: Callable[..., Any]) -> Callable[..., Any]:
    """A call of a module that keeps it on the stack until its forward ends."""

    def _call_impl(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        attached = self.__dict__.get(TRACKED)
        if attached is None:
            return original(self, *args, **kwargs)
        # what compiles a module is not a module that runs: torch.compile would not know it there
        running = [] if attached.is_wrapper else STATE.running
        depth, owner = len(running), attached.owner
        starts = attached.recorder is not None or bool(attached.reached)
        try:  # an interrupt may come at any point
            running.append(self)
            if owner is not None:
                owner.enter(args, kwargs)
            if starts:
                attached.begin(self, args, kwargs)
            return original(self, *args, **kwargs)
        finally:
            del running[depth:]
            if owner is not None:
                owner.leave()
            if starts:
                attached.end()

    return _call_impl


def _copied(
    kind: type[nn.Module],
    changes: tuple["Change", ...],
    ring: "Spreading | None",
) -> Tracked | None:
    """What is attached to the copy of a module, for as long as the copy lives."""
    if not changes and ring is None:
        return None
    attached = Tracked(kind)
    attached.changes, attached.ring = changes, ring
    attached.users = 1
    weakref.finalize(attached, _hold_calls(kind)).atexit = False
    return attached
