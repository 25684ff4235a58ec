"""A watch over several processes: their sums as one, with one small collective per sample.

    shared = Shared(w.recorder.owners, group=group)
    sample = shared.start()    # on every rank; nothing is waited for
    w.clear()
    sample.heads()             # on every rank, when it is needed: rows of the whole group

Under DDP and FSDP every rank has all heads of some rows: sums add up, maxima take the largest.
Under tensor parallelism every rank has some heads of all rows: they stand side by side, in the
order of ranks; twins are looked for within a rank. Ranks that saw nothing contribute nothing. If a
rank fails or stalls, `heads()` raises on the others within the timeout of the group, and never
returns half a sample.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from attentropy.distributed.groups import Group
from attentropy.distributed.reduce import Pending, Reducer, Totals, merge
from attentropy.models.record.accumulators import Owner, Place, Slot
from attentropy.models.record.recorder import Recorder
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
        tensor_parallel: int = 1,
    ) -> None:
        self.owners, self.tensor_parallel = owners, tensor_parallel
        self.reducer = Reducer(group=group, device=device)

    def start(self, more: Totals | None = None) -> "GroupSample":
        """Send what this rank has recorded to the others, and `more` with it.

        Args:
            more: other totals that travel with the sample, such as a loss.
        """
        mine = totals(self.owners)
        mine = mine if more is None else merge([mine, more])
        names = self.reducer.names = [owner.name for owner in self.owners]
        cut = frozenset(owner.name for owner in self.owners if owner.is_cut)
        return GroupSample(self.reducer.start(mine), names, self.tensor_parallel, cut)

    def any(self, flag: bool) -> bool:
        """True if `flag` is True on any rank; every rank calls it, and waits for the others.

        Args:
            flag: the value of this rank.
        """
        mine = torch.tensor([float(flag)], device=self.reducer.device)
        return any(bool(theirs) for theirs in self.reducer.peers.gather(mine))


@dataclass(frozen=True, eq=False)
class GroupSample:
    """A sample that all ranks are adding up; `layers` are in the order of this one's model.

    Places are in that order too, or by name if ranks have other layers, as stages of a pipeline do.

    Neighbouring ranks, `tensor_parallel` of them, read the same rows, and hold different heads of
    the layers in `cut`.
    """

    pending: Pending
    layers: list[str]
    tensor_parallel: int = 1
    cut: frozenset[str] | None = None

    @cached_property
    def whole(self) -> Totals:
        """The totals of all ranks together; waits for them."""
        return self.pending.result()

    def heads(self) -> list[HeadRow]:
        """Rows of the whole model on the inputs of all ranks."""
        return self._rows(self.slots())

    def side_by_side(self) -> list[HeadRow]:
        """Rows where all ranks hold different heads of the same inputs."""
        return self._rows(_side_by_side(self.pending.parts()))

    def slots(self) -> dict[Place, Slot]:
        """The slots of all ranks together; waits for them."""
        if self.tensor_parallel == 1:
            return slots(self.whole)
        parts, size = self.pending.parts(), self.tensor_parallel
        return _side_by_side([merge(parts[rank::size]) for rank in range(size)], self.cut)

    @property
    def order(self) -> list[str]:
        """Names of the layers of all ranks, in order, once `slots` or `heads` was called."""
        return self.pending.reducer.order or self.layers

    def _rows(self, found: dict[Place, Slot]) -> list[HeadRow]:
        known = {name: i for i, name in enumerate(self.order)}
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


def fill(owners: Collection[Owner], whole: dict[Place, Slot]) -> None:
    """Replace what owners hold by these slots, in the same memory.

    Args:
        owners: the watched modules.
        whole: the slots of all ranks.
    """
    known = {owner.name: owner for owner in owners}
    for owner in known.values():
        for slot in owner.slots.values():
            slot.clear()
    for place, slot in whole.items():
        if place.layer in known:
            known[place.layer].slot_of(place, device=slot.top.device).merge(slot)


def elsewhere(recorder: Recorder, whole: dict[Place, Slot]) -> list[Owner]:
    """Owners of the slots whose layers this rank does not have.

    Args:
        recorder: of the watch.
        whole: the slots of all ranks.
    """
    own = {owner.name for owner in recorder.owners}
    others: dict[str, Owner] = {}
    for place, slot in whole.items():
        if place.layer not in own:
            owner = others.setdefault(place.layer, Owner(place.layer, recorder))
            owner.slots[place] = slot
    return list(others.values())


def _slot(tensors: dict[str, Tensor]) -> Slot:
    slot = Slot(len(tensors["top"]), device=tensors["top"].device)
    for name in (*_SUMS, "top"):
        getattr(slot, name).copy_(tensors[name])
    slot.head_dim, slot.length, causal, window = (int(x) for x in tensors["sizes"])
    slot.is_causal, slot.is_window = bool(causal), bool(window)
    return slot


def _side_by_side(parts: list[Totals], cut: Collection[str] | None = None) -> dict[Place, Slot]:
    """Slots whose heads are those of all parts, in their order; of layers not in `cut` the first.

    Args:
        parts: of each rank.
        cut: layers whose heads ranks share; None for all.
    """
    each = [slots(part) for part in parts]
    found: dict[Place, Slot] = {}
    for place in {place: None for part in each for place in part}:
        have = [x[place] for x in each if place in x]
        found[place] = _joined(have) if cut is None or place.layer in cut else have[0]
    return {place._replace(heads=slot.heads): slot for place, slot in found.items()}


def tensor_parallel_of(model: nn.Module) -> int:
    """Number of processes that hold different heads of a model; 1 if all hold all.

    Args:
        model: the model.
    """
    from attentropy.models.tensor_parallel import shared_heads

    shared = shared_heads(model)
    return 1 if shared is None else shared.size


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
