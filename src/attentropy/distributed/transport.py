"""How keys and values reach the ranks that need them, and how their gradients return.

`RingRoute` passes blocks from rank to rank, the next on its way while the present one is worked
on: each rank holds two blocks at a time. `GatherRoute` gives every rank all of them at once: one
collective instead of R - 1 hops, and O(n) memory. Both send, per rank and with R ranks, a block of
B * Hk * (n / R) * (D + Dv) numbers

    forward   R - 1 times in the precision of k and v,
    backward  R - 1 times in that precision, and R - 1 times in float32 (float64) for gradients.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from attentropy.distributed.failures import failing
from attentropy.distributed.groups import Peers
from attentropy.distributed.layouts import Layout, padded

Visit = Callable[[tuple[range, ...], Tensor, Tensor], None]
Return = Callable[[tuple[range, ...], Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass
class Meter:
    """Bytes that this rank has sent.

    Attributes:
        sent: number of bytes.
    """

    sent: int = 0


_meters: list[Meter] = []


@contextmanager
def metered() -> Iterator[Meter]:
    """Counts the bytes of keys, values and their gradients that this rank sends meanwhile."""
    meter = Meter()
    _meters.append(meter)
    try:
        yield meter
    finally:
        _meters.remove(meter)


def _count(sent: int) -> None:
    for meter in _meters:
        meter.sent += sent


@dataclass(frozen=True)
class GatherRoute:
    """All blocks at once, by all_gather; gradients return by reduce_scatter.

    Attributes:
        peers: this process in its group.
        layout: which keys a rank holds.
        keys: number of all keys.
    """

    peers: Peers
    layout: Layout
    keys: int

    def carry(self, k: Tensor, v: Tensor, visit: Visit) -> None:
        """Calls `visit` once, with all keys and values in the order of the sequence.

        Args:
            k: this rank's keys.
            v: this rank's values.
            visit: is called with runs of positions, their keys and their values.
        """
        visit((range(self.keys),), *self._whole(k, v))

    def carry_back(self, k: Tensor, v: Tensor, visit: Return) -> tuple[Tensor, Tensor]:
        """The sum over ranks of the gradients that `visit` gives, for this rank's k and v.

        Args:
            k: this rank's keys.
            v: this rank's values.
            visit: is called with runs of positions, their keys and their values; gives their
                gradients.
        """
        every = torch.cat(visit((range(self.keys),), *self._whole(k, v)), -1)
        sizes = self.layout.sizes(self.keys, ranks=self.peers.size)
        parts = [
            self.layout.take(every, dim=2, ranks=self.peers.size, rank=rank)
            for rank in range(self.peers.size)
        ]
        even = [padded(part, 2, max(sizes)).contiguous() for part in parts]
        _count(_bytes(even[0]) * (self.peers.size - 1))
        mine = self.peers.scatter_sum(even)[:, :, : sizes[self.peers.rank]]
        d_k, d_v = mine.split([k.shape[-1], v.shape[-1]], -1)
        return d_k, d_v

    def _whole(self, k: Tensor, v: Tensor) -> list[Tensor]:
        sizes = self.layout.sizes(self.keys, ranks=self.peers.size)
        block = padded(torch.cat([k, v], -1), 2, max(sizes)).contiguous()
        _count(_bytes(block) * (self.peers.size - 1))
        parts = self.peers.gather(block)
        kept = [part[:, :, :n] for part, n in zip(parts, sizes, strict=True)]
        whole = self.layout.join(kept, dim=2)
        return list(whole.split([k.shape[-1], v.shape[-1]], -1))


@dataclass(frozen=True)
class RingRoute:
    """Blocks pass from each rank to the next; gradients travel with them, and return.

    Attributes:
        peers: this process in its group.
        layout: which keys a rank holds.
        keys: number of all keys.
    """

    peers: Peers
    layout: Layout
    keys: int

    def carry(self, k: Tensor, v: Tensor, visit: Visit) -> None:
        """Calls `visit` with the block of every rank, starting from this one's own.

        Args:
            k: this rank's keys.
            v: this rank's values.
            visit: is called with runs of positions, their keys and their values.
        """
        held = _packed(k, v)
        for step in range(self.peers.size):
            owner = self._owner(step)
            moving = _Moving(self.peers)
            if step < self.peers.size - 1:
                moving.swap(held, self._empty(owner - 1, k, v, dtype=k.dtype))
            visit(self._runs(owner), *self._unpacked(held, owner, k, v))
            held = next(iter(moving.wait()), held)

    def carry_back(self, k: Tensor, v: Tensor, visit: Return) -> tuple[Tensor, Tensor]:
        """The sum over ranks of the gradients that `visit` gives, for this rank's k and v.

        The sum for a block starts at the rank after its owner, follows the block one step behind,
        and so returns in R - 1 hops; the owner adds its own share last.

        Args:
            k: this rank's keys.
            v: this rank's values.
            visit: is called with runs of positions, their keys and their values; gives their
                gradients.
        """
        size, held = self.peers.size, _packed(k, v)
        sums: list[Tensor] = []
        for step in range(size):
            owner = self._owner(step)
            moving = _Moving(self.peers)
            if step < size - 1:
                moving.swap(held, self._empty(owner - 1, k, v, dtype=k.dtype))
            if step >= 2:
                moving.swap(sums[-1], self._empty(owner, k, v, dtype=sums[-1].dtype))
            mine = _packed(*visit(self._runs(owner), *self._unpacked(held, owner, k, v)))
            arrived = moving.wait()
            held = arrived[0] if step < size - 1 else held
            sums = [*sums[:1], mine if step < 2 else arrived[-1].add_(mine)]
        if size > 1:
            moving = _Moving(self.peers)
            moving.swap(sums[1], torch.empty_like(sums[0]))
            sums[0].add_(moving.wait()[0])
        d_k, d_v = self._unpacked(sums[0], self.peers.rank, k, v)
        return d_k, d_v

    def _owner(self, step: int) -> int:
        return (self.peers.rank - step) % self.peers.size

    def _runs(self, owner: int) -> tuple[range, ...]:
        size = self.peers.size
        return self.layout.runs(self.keys, ranks=size, rank=owner % size)

    def _shapes(self, owner: int, k: Tensor, v: Tensor) -> list[tuple[int, ...]]:
        count = sum(map(len, self._runs(owner)))
        return [(*x.shape[:2], count, x.shape[3]) for x in (k, v)]

    def _empty(self, owner: int, k: Tensor, v: Tensor, *, dtype: torch.dtype) -> Tensor:
        size = sum(b * h * n * d for b, h, n, d in self._shapes(owner, k, v))
        return k.new_empty(size, dtype=dtype)

    def _unpacked(self, block: Tensor, owner: int, k: Tensor, v: Tensor) -> list[Tensor]:
        one, two = self._shapes(owner, k, v)
        size = torch.Size(one).numel()
        return [block[:size].view(one), block[size:].view(two)]


def _packed(k: Tensor, v: Tensor) -> Tensor:
    """A block of keys and values as one message."""
    return torch.cat([k.reshape(-1), v.reshape(-1)])


def _bytes(x: Tensor) -> int:
    return x.numel() * x.element_size()


@dataclass
class _Moving:
    """Messages on their way from the previous rank and to the next one."""

    peers: Peers
    arriving: list[Tensor] = field(default_factory=list)
    works: list[Any] = field(default_factory=list)

    def swap(self, x: Tensor, into: Tensor) -> None:
        """Starts to send x to the next rank and to receive from the previous one."""
        tag = len(self.arriving)
        around = (self.peers.rank + 1, self.peers.rank - 1)
        after, before = (self.peers.global_rank(r % self.peers.size) for r in around)
        operations = [
            dist.P2POp(do, tensor, peer, group=self.peers.group, tag=tag)
            for do, tensor, peer in ((dist.isend, x, after), (dist.irecv, into, before))
            if tensor.numel()
        ]
        with failing("ring_attend", self.peers.group):
            self.works += dist.batch_isend_irecv(operations) if operations else []
        self.arriving.append(into)
        _count(_bytes(x))

    def wait(self) -> list[Tensor]:
        """What has arrived, in the order in which it was asked for."""
        with failing("ring_attend", self.peers.group):
            for work in self.works:
                work.wait()
        return self.arriving
