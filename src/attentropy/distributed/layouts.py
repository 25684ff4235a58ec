"""Which positions of a sequence each rank holds.

`contiguous` cuts the sequence into one run for each rank. `zigzag` cuts it into twice as many and
gives rank r the runs r and 2R - 1 - r, so that under a causal mask every rank has the same work:

    >>> [[list(run) for run in zigzag.runs(8, ranks=2, rank=r)] for r in (0, 1)]
    [[[0, 1], [6, 7]], [[2, 3], [4, 5]]]

A length that does not divide evenly gives runs that differ by one; nothing is padded.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from attentropy.core.errors import ArgumentError, ArgumentTypeError
from attentropy.distributed.groups import Group, peers


@dataclass(frozen=True)
class Layout:
    """Runs of positions for each rank; `turns` of them, every second one in reverse order.

    Attributes:
        name: for messages.
        turns: number of runs of each rank.
    """

    name: str
    turns: int

    def runs(self, length: int, *, ranks: int, rank: int) -> tuple[range, ...]:
        """The positions of one rank, as ascending runs; empty ones are left out.

        Args:
            length: of the sequence.
            ranks: number of ranks.
            rank: which one.
        """
        count = self.turns * ranks
        edges = [i * length // count for i in range(count + 1)]
        mine = [t * ranks + (rank if t % 2 == 0 else ranks - 1 - rank) for t in range(self.turns)]
        found = (range(edges[i], edges[i + 1]) for i in mine)
        return tuple(run for run in found if run)

    def sizes(self, length: int, *, ranks: int) -> list[int]:
        """The number of positions that each rank holds.

        Args:
            length: of the sequence.
            ranks: number of ranks.
        """
        every = (self.runs(length, ranks=ranks, rank=r) for r in range(ranks))
        return [sum(map(len, runs)) for runs in every]

    def take(self, x: Tensor, *, dim: int, ranks: int, rank: int) -> Tensor:
        """The positions of one rank out of the whole sequence.

        Args:
            x: the whole sequence.
            dim: the dimension of positions.
            ranks: number of ranks.
            rank: which one.
        """
        runs = self.runs(x.shape[dim], ranks=ranks, rank=rank)
        parts = [x.narrow(dim, run.start, len(run)) for run in runs]
        return torch.cat(parts, dim) if parts else x.narrow(dim, 0, 0)

    def join(self, parts: Sequence[Tensor], *, dim: int) -> Tensor:
        """The whole sequence out of the positions of every rank: the inverse of `take`.

        Args:
            parts: what each rank holds, in the order of ranks.
            dim: the dimension of positions.
        """
        ranks, length = len(parts), sum(part.shape[dim] for part in parts)
        pieces: dict[int, Tensor] = {}
        for rank, part in enumerate(parts):
            runs = self.runs(length, ranks=ranks, rank=rank)
            cut = part.split([len(run) for run in runs], dim) if runs else ()
            pieces |= {run.start: piece for run, piece in zip(runs, cut, strict=True)}
        ordered = [pieces[start] for start in sorted(pieces)]
        return torch.cat(ordered, dim) if ordered else parts[0]

    def shard(self, x: Tensor, *, dim: int = 1, group: Group = None) -> Tensor:
        """This rank's positions of a sequence that every rank holds whole; differentiable.

        Args:
            x: the whole sequence.
            dim: the dimension of positions.
            group: as in ring_attend().
        """
        me = peers(group)
        _check_dim("shard", x, dim)
        return self.take(x, dim=dim, ranks=me.size, rank=me.rank)

    def unshard(self, x: Tensor, *, dim: int = 1, group: Group = None) -> Tensor:
        """The whole sequence on every rank, out of what each holds; without gradients.

        Every rank of the group must call it.

        Args:
            x: what this rank holds.
            dim: the dimension of positions.
            group: as in ring_attend().
        """
        me = peers(group)
        _check_dim("unshard", x, dim)
        sizes = [int(n) for n in me.gather(torch.tensor(x.shape[dim], device=x.device))]
        self.check_sizes("x", sizes)
        whole = padded(x.detach(), dim, max(sizes))
        parts = me.gather(whole)
        kept = [part.narrow(dim, 0, n) for part, n in zip(parts, sizes, strict=True)]
        return self.join(kept, dim=dim)

    def positions(
        self, length: int, *, group: Group = None, device: torch.device | str | None = None
    ) -> Tensor:
        """Global positions of this rank's tokens, [n], as rotary and other encodings need them.

        Args:
            length: of the sequence.
            group: as in ring_attend().
            device: of the result.
        """
        me = peers(group)
        return self.take(torch.arange(length, device=device), dim=0, ranks=me.size, rank=me.rank)

    def over(self, group: Group = None) -> "Spread":
        """Sequences in this layout over the ranks of a group.

        Args:
            group: as in ring_attend().
        """
        return Spread(self, group)

    def check_sizes(self, name: str, sizes: Sequence[int]) -> None:
        """Raise unless ranks hold what this layout gives them of the sum of the sizes.

        Args:
            name: of the tensor, for the message.
            sizes: the number of positions on each rank.
        """
        wanted = self.sizes(sum(sizes), ranks=len(sizes))
        for rank, (got, want) in enumerate(zip(sizes, wanted, strict=True)):
            if got != want:
                rule = f"{want}, its share of {sum(sizes)} in the {self.name} layout"
                raise ArgumentError(f"the length of {name} on rank {rank}", rule, got)


@dataclass(frozen=True)
class Spread:
    """Sequences that the ranks of a group share in a layout.

    Attributes:
        layout: which positions a rank holds.
        group: whose ranks share the sequences.
    """

    layout: Layout
    group: Group = None

    def shares(self, *lengths: int, device: torch.device | str = "cpu") -> list["Placed"]:
        """Which positions this rank holds of each sequence; one collective.

        Args:
            lengths: numbers of positions that this rank holds, one for each sequence.
            device: where the collective is done.
        """
        me = peers(self.group)
        every = torch.stack(me.gather(torch.tensor(lengths, device=device))).T.tolist()
        for sizes in every:
            self.layout.check_sizes("the sequence", sizes)
        wholes = (sum(sizes) for sizes in every)
        return [Placed(n, self.layout.runs(n, ranks=me.size, rank=me.rank)) for n in wholes]


class PositionRun(NamedTuple):
    """Positions start .. stop - 1, as `range` has them.

    torch.compile would make a graph for every `range`; the numbers of this one may be symbols.

    Attributes:
        start: the first position.
        stop: one past the last.
    """

    start: int
    stop: int


Runs = tuple[range | PositionRun, ...]


class Placed(NamedTuple):
    """Runs of positions within a whole of some length.

    Attributes:
        whole: length of the sequence.
        runs: positions that are here.
    """

    whole: int
    runs: Runs


def spread(value: object) -> Spread:
    """A Spread as it is; a group or a mesh is one in the contiguous layout.

    Args:
        value: a Spread, a group or a mesh.
    """
    if isinstance(value, Spread):
        return value
    peers(value)
    return Spread(contiguous, value)


def padded(x: Tensor, dim: int, length: int) -> Tensor:
    """A tensor with zeros after it along one dimension.

    Args:
        x: any tensor.
        dim: the dimension.
        length: of the result along it.
    """
    missing = length - x.shape[dim]
    below = x.dim() - 1 - dim % x.dim()
    return F.pad(x, (0, 0) * below + (0, missing)) if missing else x


def _check_dim(owner: str, x: Tensor, dim: int) -> None:
    if not isinstance(x, Tensor):
        raise ArgumentTypeError(f"{owner}: x", "a tensor", type(x).__name__)
    if not -x.dim() <= dim < x.dim():
        raise ArgumentError(f"{owner}: dim", f"a dimension of x, of shape {list(x.shape)}", dim)


contiguous = Layout("contiguous", 1)
"""One run of positions for each rank: 0000 1111 2222 3333."""

zigzag = Layout("zigzag", 2)
"""Two runs for each rank, balanced under a causal mask: 00 11 22 33 33 22 11 00."""
