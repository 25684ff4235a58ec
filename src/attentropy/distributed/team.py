"""A team: processes that share independent pieces of work, and all get all results.

    found = team.map(work, items)    # on every rank: [work(item) for item in items]

Rank r of N works on the items r, r + N, r + 2 N, ... Results come back in the order of the items,
whatever N is, so that sums over them are those of one process to the last bit. Every rank calls the
methods of its team in the same order.
"""

import io
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from attentropy.core.errors import AttentropyError, DistributedError
from attentropy.distributed.failures import is_of_messages
from attentropy.distributed.groups import Peers

T = TypeVar("T")
R = TypeVar("R")


class Run(Protocol):
    """How a process works on its items: gives work(item) of each, in their order."""

    def __call__(self, work: Callable[[T], R], items: Sequence[T], /) -> Iterator[R]:
        """The results.

        Args:
            work: what to do with an item.
            items: of this process.
        """
        ...


def in_turn(work: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
    """work(item) of each item, one after the other.

    Args:
        work: what to do with an item.
        items: of this process.
    """
    return (work(item) for item in items)


@dataclass(frozen=True)
class _DoneShare(Generic[R]):
    """What one rank made of its items, up to the first that failed."""

    values: list[R]
    failure: Exception | None = None


class Team:
    """The processes that share work.

    Args:
        peers: this process in its group.
        store: of the launcher, where ranks say which processes they are; None without one.
    """

    def __init__(self, peers: Peers, store: Any = None) -> None:
        self.peers, self.store = peers, store

    @property
    def size(self) -> int:
        """Number of processes."""
        return self.peers.size

    @property
    def is_first(self) -> bool:
        """True in the process that writes and prints."""
        return self.peers.rank == 0

    def map(
        self,
        work: Callable[[T], R],
        items: Iterable[T],
        *,
        run: Run = in_turn,
    ) -> list[R]:
        """[work(item) for item in items], with the items shared among the ranks.

        If `work` raises, every rank raises the exception of the first item that failed.

        Args:
            work: a function that gives the same for an item on every rank; what it returns is
                pickled.
            items: the same on every rank.
            run: how a rank works on its items.
        """
        todo = list(items)
        if self.size == 1:
            return list(run(work, todo))
        shares = self.gather(_share(work, self.share(todo), run=run))
        failed = [
            (rank + len(share.values) * self.size, share.failure)
            for rank, share in enumerate(shares)
            if share.failure is not None
        ]
        if failed:
            raise min(failed, key=lambda pair: pair[0])[1]
        return [shares[i % self.size].values[i // self.size] for i in range(len(todo))]

    def share(self, items: Sequence[T]) -> Sequence[T]:
        """The items that this rank works on.

        Args:
            items: the same on every rank.
        """
        return items[self.peers.rank :: self.size]

    def of_first(self, make: Callable[[], R]) -> R:
        """The result of `make` on the first rank, sent to every rank; an exception is sent too.

        Args:
            make: is called on the first rank only; what it returns is pickled.
        """
        if self.size == 1:
            return make()
        mine = _share(lambda _: make(), [None]) if self.is_first else None
        share: _DoneShare[R] = self._from_first(mine)
        if share.failure is not None:
            raise share.failure
        return share.values[0]

    def gather(self, value: R) -> list[R]:
        """The value of every rank, by rank; names a rank that died.

        Args:
            value: of this rank; it is pickled.
        """
        if self.size == 1:
            return [value]
        group, first = self.peers.group, self.peers.global_rank(0)
        if not self.is_first:
            with _naming(0):
                dist.send_object_list([packed(value)], dst=first, group=group)
            return self._from_first(None)
        found = [value]
        for rank in range(1, self.size):
            box: list[Any] = [None]
            with _naming(rank):
                dist.recv_object_list(box, src=self.peers.global_rank(rank), group=group)
                found.append(pickle.loads(box[0]))
        return self._from_first(found)

    def check_same(self, what: str, value: object) -> None:
        """Raise DistributedError unless all ranks have the same value.

        Args:
            what: the value is, for the message.
            value: of this rank.
        """
        first, *others = self.gather(value)
        for rank, theirs in enumerate(others, 1):
            if theirs != first:
                raise DistributedError(
                    f"{what} must be the same on all ranks, got {first!r} on rank 0 and "
                    f"{theirs!r} on rank {rank}"
                )

    def _from_first(self, value: Any) -> Any:
        first = self.peers.rank == 0
        with _naming(None if first else 0):
            return _sent(value, self.peers)


class Unison(Team):
    """Processes that all do all of the work; what the first one finds counts.

    Processes that share the heads of a model must make the same calls. Numbers that differ by
    rounding would make them choose differently, so that each waits for calls that others do not
    make.
    """

    @property
    def size(self) -> int:
        """1: the work is not shared out."""
        return 1

    @property
    def is_first(self) -> bool:
        """True: each does the work of the first."""
        return True

    def map(self, work: Callable[[T], R], items: Iterable[T], *, run: Run = in_turn) -> list[R]:
        """[work(item) for item in items] by every process, as the first one finds it.

        Args:
            work: makes the same calls on every rank; what it returns is pickled.
            items: the same on every rank.
            run: how a rank works on its items.
        """
        todo = list(items)
        return self.of_first(lambda: list(run(work, todo)))

    def share(self, items: Sequence[T]) -> Sequence[T]:
        """All items.

        Args:
            items: the same on every rank.
        """
        return items

    def of_first(self, make: Callable[[], R]) -> R:
        """make() by every process, as the first one finds it.

        Args:
            make: makes the same calls on every rank; what it returns is pickled.
        """
        try:
            value = make()
        except RuntimeError as error:
            if not is_of_messages(error):
                raise
            text = f"another rank died, left or did not answer ({error})"
            raise DistributedError(text) from error
        with _naming(None):
            return _sent(value, self.peers)


ALONE = Team(Peers(None, 0, 1))
"""This process alone."""


NUMBERS = (torch.float64, torch.float32, torch.int64, torch.int32, torch.bool)


class _Packer(pickle.Pickler):
    """Writes tensors as arrays, which takes a tenth of the time."""

    def reducer_override(self, obj: Any) -> Any:
        plain = type(obj) is Tensor and obj.dtype in NUMBERS and not obj.requires_grad
        if plain and obj.device.type == "cpu" and obj.layout is torch.strided:
            return torch.from_numpy, (obj.numpy(),)
        return NotImplemented


def packed(value: object) -> bytes:
    """A message that pickle.loads reads, as pickle.dumps writes it but for tensors.

    Args:
        value: anything that can be pickled.
    """
    message = io.BytesIO()
    _Packer(message, protocol=5).dump(value)
    return message.getvalue()


def _sent(value: Any, peers: Peers) -> Any:
    """The value of the first process, in all of them."""
    box = [packed(value) if peers.rank == 0 else None]
    dist.broadcast_object_list(box, src=peers.global_rank(0), group=peers.group)
    return value if peers.rank == 0 else pickle.loads(box[0] or b"")


def _share(work: Callable[[T], R], items: Sequence[T], *, run: Run = in_turn) -> _DoneShare[R]:
    values: list[R] = []
    try:
        for value in run(work, items):
            values.append(value)
    except DistributedError:
        raise
    except Exception as error:
        return _DoneShare(values, _portable(error))
    return _DoneShare(values)


def _portable(error: Exception) -> Exception:
    """The exception if it survives the way to other ranks, else one with its words."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # whatever its class does when it is made again
        kind = AttentropyError if isinstance(error, AttentropyError) else RuntimeError
        return kind(f"{type(error).__name__}: {error}")
    return error


@contextmanager
def _naming(rank: int | None) -> Iterator[None]:
    """Raise DistributedError that names the rank which does not answer."""
    try:
        yield
    except (RuntimeError, EOFError, pickle.UnpicklingError) as error:
        who = "another rank" if rank is None else f"rank {rank}"
        raise DistributedError(f"{who} died, left or did not answer ({error})") from error
