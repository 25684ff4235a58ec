"""What is patched while models are watched or steered: one lock, and one count for each patch.

    release = hold("softmax", apply)    # the first user applies it; apply() returns the undo
    release()                           # the last user takes it back

Everything that attentropy replaces, in torch, in transformers or in itself, is held here. Watches
and changes of any number of threads share a patch.
"""

import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

Undo = Callable[[], None]

_LOCK = threading.RLock()
_held: dict[Hashable, "_Held"] = {}
_released: deque[Hashable] = deque()
_sections = [0]  # how many sections the thread that has the lock is in


class _Held:
    """A patch that is applied: how to take it back, and the number of its users."""

    def __init__(self, undo: Undo) -> None:
        self.undo = undo
        self.users = 0


class Release:
    """Gives up one use of a patch, once; more calls do nothing."""

    def __init__(self, name: Hashable) -> None:
        self._name = name
        self._done = False

    def __call__(self) -> None:
        with _LOCK:
            if self._done:
                return
            self._done = True
            _released.append(self._name)
            if not _sections[0]:  # else the running section takes it back when it ends
                with alone():
                    pass


def hold(name: Hashable, apply: Callable[[], Undo]) -> Release:
    """Use a patch: the first user applies it, the last to release it takes it back.

    Args:
        name: what is patched; users of one name share one patch.
        apply: makes the change and returns what undoes it; called by the first user only.
    """
    with alone():
        held = _held.get(name)
        if held is None:
            held = _held[name] = _Held(apply())
        held.users += 1
    return Release(name)


@contextmanager
def alone() -> Iterator[None]:
    """No other thread holds, releases or tracks anything meanwhile.

    Garbage collection may release a patch in the middle of such a section, in the same thread:
    patches are taken back when the outermost section ends.
    """
    with _LOCK:
        _sections[0] += 1
        try:
            yield
        finally:
            try:
                if _sections[0] == 1:
                    _take_back()
            finally:
                _sections[0] -= 1


def _take_back() -> None:
    while _released:
        name = _released.popleft()
        held = _held[name]
        held.users -= 1
        if not held.users:
            del _held[name]
            held.undo()


def replace(holder: Any, name: str, value: Any) -> Undo:
    """Set an attribute of a module, class or object; returns what puts back the one before.

    What someone else has put there in the meantime stays.

    Args:
        holder: has the attribute, itself or by inheritance.
        name: of the attribute.
        value: takes its place.
    """
    missing = object()
    before = vars(holder).get(name, missing)
    setattr(holder, name, value)

    def undo() -> None:
        if vars(holder).get(name) is not value:
            return
        if before is missing:
            delattr(holder, name)
        else:
            setattr(holder, name, before)

    return undo


def together(*undos: Undo) -> Undo:
    """One function that calls all of these, the last first."""

    def undo() -> None:
        for one in reversed(undos):
            one()

    return undo
