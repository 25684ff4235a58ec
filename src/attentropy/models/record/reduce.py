"""A watch over several processes: their sums as one, with one small collective per sample.

    shared = Shared(w.recorder.owners, group=group)
    sample = shared.start()    # on every rank; nothing is waited for
    w.clear()
    sample.heads()             # on every rank, when it is needed: rows of the whole group

Under DDP and FSDP every rank has all heads of some rows: sums add up, maxima take the largest.
Ranks that saw nothing take part with nothing. If a rank fails or stalls, `heads()` raises on the
others within the timeout of the group, and gives no half of a sample.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from attentropy.distributed.groups import Group
from attentropy.distributed.reduce import Pending, Reducer, Totals, merge
from attentropy.models.record.accumulators import Owner, Place, Slot
from attentropy.models.record.rows import HeadRow, rows_of

_SUMS = ("rows", "sampled", "overlap")
_BREAK = "\n"


class Shared:
    """Joins the slots of a watch over a group, sample after sample."""

    def __init__(
        self,
        owners: Collection[Owner],
        *,
        group: Group = None,
        device: torch.device | str | None = None,
    ) -> None:
        self.owners = owners
        self.reducer = Reducer(group=group, device=device)

    def start(self, more: Totals | None = None) -> "GroupSample":
        """Send what this rank has recorded to the others, and `more` with it.

        Args:
            more: other totals that travel with the sample, such as a loss.
        """
        mine = totals(self.owners)
        mine = mine if more is None else merge([mine, more])
        return GroupSample(self.reducer.start(mine), [o.name for o in self.owners])

    def whole(self) -> Totals:
        """The totals of all ranks; waits for them."""
        return self.start().whole

    def any(self, flag: bool) -> bool:
        """True if `flag` is True on any rank; every rank calls it, and waits for the others.

        Args:
            flag: what this rank says.
        """
        mine = torch.tensor([float(flag)], device=self.reducer.device)
        return any(bool(theirs) for theirs in self.reducer.peers.gather(mine))


@dataclass(frozen=True, eq=False)
class GroupSample:
    """A sample that all ranks are adding up; `layers` gives the order of its places."""

    pending: Pending
    layers: list[str]

    @cached_property
    def whole(self) -> Totals:
        """The totals of all ranks together; waits for them."""
        return self.pending.result()

    def heads(self) -> list[HeadRow]:
        """Rows of data-parallel ranks, which hold the same heads of different inputs."""
        return self._rows(slots(self.whole))

    def side_by_side(self) -> list[HeadRow]:
        """Rows of tensor-parallel ranks, which hold different heads of the same inputs.

        Heads are numbered in the order of ranks; twins are sought within a rank.
        """
        parts = [slots(part) for part in self.pending.parts()]
        places = {place: None for part in parts for place in part}
        return self._rows({p: _joined([x[p] for x in parts if p in x]) for p in places})

    def _rows(self, found: dict[Place, Slot]) -> list[HeadRow]:
        known = {name: i for i, name in enumerate(self.layers)}
        order = sorted(found, key=lambda place: (known.get(place.layer, len(known)), place))
        return [row for i, place in enumerate(order) for row in rows_of(place, found[place], i)]


def totals(owners: Collection[Owner]) -> Totals:
    """Everything that slots hold, by name; slots that were never used are left out.

    Args:
        owners: the watched modules.
    """
    sums: dict[str, Tensor] = {}
    maxima: dict[str, Tensor] = {}
    for owner in owners:
        for place, slot in owner.slots.items():
            if not slot.length:
                continue
            name = _BREAK.join(str(part) for part in place)
            sums |= {f"{name}{_BREAK}{x}": getattr(slot, x).clone() for x in _SUMS}
            told = [slot.head_dim, slot.length, slot.is_causal, slot.is_window]
            sizes = slot.top.new_tensor(told)
            maxima |= {f"{name}{_BREAK}top": slot.top.clone(), f"{name}{_BREAK}sizes": sizes}
    return Totals(sums, maxima)


def slots(whole: Totals) -> dict[Place, Slot]:
    """The slots that totals were made of.

    Args:
        whole: what `totals` gave.
    """
    found: dict[Place, dict[str, Tensor]] = {}
    for name, x in (*whole.sums.items(), *whole.maxima.items()):
        if _BREAK not in name:  # what was sent besides
            continue
        layer, call, phase, kind, operator, heads, what = name.split(_BREAK)
        place = Place(layer, int(call), phase, kind, operator, int(heads))
        found.setdefault(place, {})[what] = x
    return {place: _slot(tensors) for place, tensors in found.items()}


def fill(owners: Collection[Owner], whole: Totals) -> None:
    """Put totals in the place of what slots hold, into their own memory.

    Args:
        owners: the watched modules.
        whole: the totals of all ranks.
    """
    known = {owner.name: owner for owner in owners}
    for owner in known.values():
        for slot in owner.slots.values():
            slot.clear()
    for place, slot in slots(whole).items():
        if place.layer in known:
            known[place.layer].slot_of(place, device=slot.top.device).merge(slot)


def _slot(tensors: dict[str, Tensor]) -> Slot:
    slot = Slot(len(tensors["top"]), device=tensors["top"].device)
    for name in (*_SUMS, "top"):
        getattr(slot, name).copy_(tensors[name])
    slot.head_dim, slot.length, causal, window = (int(x) for x in tensors["sizes"])
    slot.is_causal, slot.is_window = bool(causal), bool(window)
    return slot


def _joined(parts: list[Slot]) -> Slot:
    joined = Slot(sum(part.heads for part in parts), device=parts[0].top.device)
    joins: dict[str, Callable[..., Tensor]] = {"overlap": torch.block_diag}
    for name in (*_SUMS, "top"):
        side_by_side = joins.get(name, lambda *x: torch.cat(x, -1))
        getattr(joined, name).copy_(side_by_side(*(getattr(part, name) for part in parts)))
    first = parts[0]
    joined.head_dim, joined.is_causal = first.head_dim, first.is_causal
    joined.is_window = first.is_window
    joined.length = max(part.length for part in parts)
    return joined
