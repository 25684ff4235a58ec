"""Statistics of several processes as one: sums add up, maxima take the largest, both exactly.

Each process has named sums and maxima; a `Reducer` joins them with one small all_gather per sample,
started at once and waited for when the result is read. A process that recorded nothing contributes
nothing. When a process has a new name, all processes agree on it once.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from attentropy.core.errors import DistributedError
from attentropy.core.results import HeadStats, Stats
from attentropy.distributed.failures import failing, tell, wait
from attentropy.distributed.groups import Group, Peers, peers

Shapes = dict[tuple[str, str], tuple[int, ...]]


@dataclass(frozen=True, eq=False)
class Totals:
    """Numbers of one process, to be joined with those of others.

    Attributes:
        sums: named tensors that add up.
        maxima: named tensors of which the largest counts.
    """

    sums: Mapping[str, Tensor] = field(default_factory=dict)
    maxima: Mapping[str, Tensor] = field(default_factory=dict)

    def shapes(self) -> Shapes:
        """(kind, name) -> shape."""
        return {
            (kind, name): tuple(x.shape)
            for kind in ("sums", "maxima")
            for name, x in getattr(self, kind).items()
        }


def merge(parts: list[Totals]) -> Totals:
    """The totals of all parts together; a part need not have every name.

    Args:
        parts: totals of several processes.

    >>> a, b = (Totals({"n": torch.tensor(n)}, {"top": torch.tensor(n)}) for n in (2.0, 3.0))
    >>> merge([a, b, Totals()])
    Totals(sums={'n': tensor(5.)}, maxima={'top': tensor(3.)})
    """
    sums: dict[str, Tensor] = {}
    maxima: dict[str, Tensor] = {}
    for part in parts:
        for name, x in part.sums.items():
            sums[name] = sums[name] + x if name in sums else x
        for name, x in part.maxima.items():
            maxima[name] = torch.maximum(maxima[name], x) if name in maxima else x
    return Totals(sums, maxima)


class Reducer:
    """Joins the totals of a group, sample after sample.

    Every process calls `start` for every sample and reads the result of every sample, in the same
    order. A sample is one all_gather of 8 bytes per number; where a process has a name that the
    others do not know yet, one more exchange of names precedes the second try.

    Args:
        group: as in ring_attend().
        device: where messages are made; the GPU for NCCL and the CPU otherwise if not given.

    Attributes:
        names: of what this process has, in its order.
        order: the names of all processes, in the same order on each, since they agreed last.
    """

    def __init__(self, *, group: Group = None, device: torch.device | str | None = None) -> None:
        self.peers: Peers = peers(group)
        self.device = _device(self.peers) if device is None else torch.device(device)
        self.shapes: Shapes = {}
        self.names: list[str] = []
        self.order: list[str] = []

    def start(self, totals: Totals) -> "Pending":
        """Start sending this process's totals; `result()` of the returned value waits.

        Args:
            totals: of this process.
        """
        mine = _packed(totals, self.shapes, device=self.device)
        parts = [torch.empty_like(mine) for _ in range(self.peers.size)]
        if self.peers.size == 1:
            return Pending(self, totals, [mine], dict(self.shapes), None)
        with failing("statistics", self.peers.group):
            work = dist.all_gather(parts, mine, group=self.peers.group, async_op=True)
        return Pending(self, totals, parts, dict(self.shapes), work)

    def tell(self, error: BaseException) -> None:
        """Tell the processes that wait for samples of this one what ended it.

        Args:
            error: what was raised here.
        """
        tell(self.peers.group, error)

    def agree(self, totals: Totals) -> None:
        """Learn every name and shape that some process has.

        Args:
            totals: of this process.
        """
        known: Shapes = {}
        everyone = _everyone(self.peers, (self.shapes | totals.shapes(), self.names))
        self.order = _in_order([names for _, names in everyone])
        for theirs, _ in everyone:
            for name, shape in theirs.items():
                if known.setdefault(name, shape) != shape:
                    raise DistributedError(
                        f"statistics: {name[1]} has shape {list(shape)} on one rank and "
                        f"{list(known[name])} on another"
                    )
        self.shapes = dict(sorted(known.items()))


@dataclass(frozen=True, eq=False)
class Pending:
    """Totals that are being sent.

    Attributes:
        reducer: that sent them.
        mine: the totals of this process.
        arriving: a message of each rank.
        shapes: the names that messages hold, and their shapes.
        work: what to wait for; None if nothing is under way.
    """

    reducer: Reducer
    mine: Totals
    arriving: list[Tensor]
    shapes: Shapes
    work: Any

    def parts(self) -> list[Totals]:
        """The totals of each rank; raises DistributedError if one does not send its own."""
        if self.work is not None:
            wait(self.work, "statistics", self.reducer.peers.group)
        if any(bool(x[0]) for x in self.arriving):
            if self.reducer.shapes == self.shapes:
                self.reducer.agree(self.mine)
            return self.reducer.start(self.mine).parts()
        return [_unpacked(x, self.shapes) for x in self.arriving]

    def result(self) -> Totals:
        """The totals of all ranks together."""
        return merge(self.parts())

    def joined(self) -> Totals:
        """The tensors of all ranks, concatenated along the last dimension.

        So are the heads of a layer that ranks share.
        """
        parts = self.parts()
        both: dict[str, dict[str, Tensor]] = {"sums": {}, "maxima": {}}
        for kind, name in self.reducer.shapes:
            found = [getattr(p, kind)[name] for p in parts if name in getattr(p, kind)]
            if found:
                both[kind][name] = torch.cat(found, -1)
        return Totals(**both)


def _device(me: Peers) -> torch.device:
    """Where messages are made: NCCL sends from the GPU only."""
    gpu = me.group is not None and dist.get_backend(me.group) == "nccl"
    return torch.device("cuda" if gpu else "cpu")


def _packed(totals: Totals, shapes: Shapes, *, device: torch.device) -> Tensor:
    """[names unknown to others?, then for each name: present?, values]."""
    new = not totals.shapes().items() <= shapes.items()
    pieces = [torch.tensor([float(new)], dtype=torch.float64, device=device)]
    for (kind, name), shape in shapes.items():
        value = getattr(totals, kind).get(name)
        if value is None or tuple(value.shape) != shape:
            pieces.append(pieces[0].new_zeros(1 + torch.Size(shape).numel()))
        else:
            pieces += [pieces[0].new_ones(1), value.detach().to(device, torch.float64).reshape(-1)]
    return torch.cat(pieces)


def _unpacked(x: Tensor, shapes: Shapes) -> Totals:
    found: dict[str, dict[str, Tensor]] = {"sums": {}, "maxima": {}}
    first = 1
    for (kind, name), shape in shapes.items():
        size = torch.Size(shape).numel()
        if bool(x[first]):
            found[kind][name] = x[first + 1 : first + 1 + size].view(shape)
        first += 1 + size
    return Totals(**found)


def _in_order(lists: list[list[str]]) -> list[str]:
    """The names of all lists: in the order that all have them, or else by name, 2 before 10."""
    if all(names == lists[0] for names in lists):
        return lists[0]
    every = {name for names in lists for name in names}
    return sorted(every, key=_by_number)


def _by_number(name: str) -> list[tuple[int, str]]:
    """Orders names as people count: layers.2 before layers.10."""
    parts = re.split(r"(\d+)", name)
    return [(len(part) if part.isdigit() else 0, part) for part in parts]


def _everyone(me: Peers, value: Any) -> list[Any]:
    """The value of every rank."""
    if me.size == 1:
        return [value]
    found: list[Any] = [None] * me.size
    with failing("statistics", me.group):
        dist.all_gather_object(found, value, group=me.group)
    return found


def reduce_heads(stats: Stats, *, group: Group = None) -> HeadStats:
    """stats.per_head() of the rows of all ranks: of a batch or a sequence that they share.

    Every rank of the group calls it, with stats of rows or of none; all get the same.

    Args:
        stats: of rows that this rank holds.
        group: as in ring_attend().
    """
    heads = stats.per_head()
    means = {name: heads[name] for name in heads if name not in ("rows", "max_logit")}
    rows = heads.rows.double()
    sums = {name: (x * rows).masked_fill(rows == 0, 0.0) for name, x in means.items()}
    top = {}
    if heads.max_logit is not None:
        top["max_logit"] = heads.max_logit.masked_fill(rows == 0, -torch.inf)
    reducer = Reducer(group=group, device=rows.device)
    whole = reducer.start(Totals({**sums, "rows": rows}, top)).result()
    count = whole.sums["rows"]
    some = count.masked_fill(count == 0, torch.nan)
    named = {name: whole.sums[name] / some for name in means}
    largest = whole.maxima.get("max_logit")
    if largest is not None:
        largest = largest.masked_fill(count == 0, torch.nan)
    return HeadStats(max_logit=largest, rows=count.long(), **named)
