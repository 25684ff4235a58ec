"""Answers of the server, computed once for each state of the files that they show."""

import threading
from collections import OrderedDict
from collections.abc import Callable

ROOM = 64 << 20
"""Bytes of answers that are kept, the newest ones."""


class Answers:
    """Texts by name and state; computed one at a time, so that many clients cost as much as one.

    Args:
        room: bytes that are kept at most; one answer larger than that is kept alone.
    """

    def __init__(self, *, room: int = ROOM) -> None:
        self.room = room
        self._kept: OrderedDict[str, tuple[str, bytes]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, name: str, state: str, make: Callable[[], bytes]) -> bytes:
        """The answer of that name, made again if the state has changed.

        Args:
            name: what is asked for.
            state: changes when the answer may change.
            make: makes it.
        """
        with self._lock:
            found = self._kept.get(name)
            if found is None or found[0] != state:
                found = self._kept[name] = (state, make())
            self._kept.move_to_end(name)
            while len(self._kept) > 1 and self._size() > self.room:
                self._kept.popitem(last=False)
            return found[1]

    def _size(self) -> int:
        return sum(len(text) for _, text in self._kept.values())
