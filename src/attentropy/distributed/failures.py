"""When a rank fails, the others learn its error at once.

A rank that raises writes its error to the store of the process group. Ranks that wait for it look
there every POLL seconds, and raise with its message instead of waiting for the timeout of the
group. This works with gloo only: other backends wait as torch does.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any
from uuid import uuid4

import torch
import torch.distributed as dist

from attentropy.core.errors import DistributedError

POLL = timedelta(seconds=0.2)
_heard: set[bytes] = set()  # words that this process left or has raised already


def tell(group: Any, error: BaseException) -> None:
    """Store the error that ends the work of this rank; the first error of a group stays.

    Args:
        group: the ProcessGroup; None for a process alone.
        error: the exception. A DistributedError is not written: it comes from another rank.
    """
    if group is None or isinstance(error, DistributedError):
        return
    word = f"{uuid4()} rank {dist.get_rank(group)} failed: {type(error).__name__}: {error}".encode()
    _heard.add(word)
    with suppress(RuntimeError):  # the store is gone with the rank that kept it
        store, key = _store(group)
        last = store.get(key) if store.check([key]) else b""
        store.compare_set(key, last.decode() if last in _heard else "", word.decode())


def heard(group: Any) -> str | None:
    """The error of another rank, returned once; None if there is nothing new.

    Args:
        group: the ProcessGroup; None for a process alone.
    """
    if group is None:
        return None
    with suppress(RuntimeError):
        store, key = _store(group)
        word = store.get(key) if store.check([key]) else b""
        if word and word not in _heard:
            _heard.add(word)
            return word.decode().split(" ", 1)[1]
    return None


def is_of_messages(error: BaseException) -> bool:
    """Was an error raised by messages between processes, and not by what was computed?

    Args:
        error: what code that may exchange messages raised.
    """
    return isinstance(error, dist.DistError) or "gloo/transport" in str(error)


@contextmanager
def failing(what: str, group: Any) -> Iterator[None]:
    """Raise DistributedError if another rank fails, stalls or leaves meanwhile.

    Args:
        what: the work in progress, for the message.
        group: the ProcessGroup; None for a process alone.
    """
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, DistributedError):
            raise
        word = heard(group)
        reason = (
            f"another rank of the group failed, left or did not answer within the timeout of the "
            f"group ({error})"
        )
        raise DistributedError(f"{what}: {word or reason}") from error


def wait(work: Any, what: str, group: Any) -> None:
    """Wait for a collective; raise DistributedError as soon as another rank says that it failed.

    Args:
        work: what the collective gave with async_op=True.
        what: the work in progress, for the message.
        group: the ProcessGroup; None for a process alone.
    """
    with failing(what, group):
        if dist.get_backend(group) != "gloo":
            work.wait()
            return
        while not _ended(work):
            if (word := heard(group)) is not None:
                raise DistributedError(f"{what}: {word}")


@contextmanager
def telling(group: Any, *, hang_up: bool = False) -> Iterator[None]:
    """Write any exception raised inside the block to the store.

    Args:
        group: the ProcessGroup; None for a process alone.
        hang_up: close the connections too, for ranks that wait for a message and not for a
            collective; the group cannot be used afterwards.
    """
    try:
        yield
    except BaseException as error:
        tell(group, error)
        if hang_up:
            _hang_up(group)
        raise


def _store(group: Any) -> tuple[Any, str]:
    store = dist.distributed_c10d._get_default_store()
    return store, f"attentropy/failed/{group.group_name}"


def _ended(work: Any) -> bool:
    try:
        work.wait(POLL)
    except RuntimeError as error:
        if str(error).startswith("Operation timed out!"):
            return False
        raise
    return True


def _hang_up(group: Any) -> None:
    """Close the connections to all other ranks: gloo does so when a message comes too late."""
    if group is None or dist.get_backend(group) != "gloo":
        return
    for rank in dist.get_process_group_ranks(group):
        if rank != dist.get_rank():
            with suppress(RuntimeError):
                late = dist.irecv(torch.empty(1), src=rank, group=group, tag=1 << 20)
                if late is not None:
                    late.wait(timedelta(milliseconds=1))
