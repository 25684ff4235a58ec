"""Keys that stay on their ranks, as in a cache: rows of all of them merge with one all_gather.

Every rank holds the same queries and some of the keys. It attends its keys, which gives a row state
for each row; the states of all ranks are sent in one message, and merge into the rows of all keys.
A message has Dv + 9 numbers (Dv + 11 of 4 bytes) for each row, whatever the number of keys.
"""

from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple, NoReturn

import torch
from torch import Tensor

from attentropy.core.errors import UnsupportedError
from attentropy.core.states import RowState, merge, rest_of, spread_of
from attentropy.distributed.groups import Peers
from attentropy.distributed.merging import Kept, kept_of, state_of
from attentropy.distributed.transport import Return, Visit


class HeldKeys(NamedTuple):
    """Keys that stand together.

    Attributes:
        positions: in the whole sequence.
        columns: of what this rank holds.
    """

    positions: range
    columns: slice


@dataclass(frozen=True)
class StayRoute:
    """Keys do not move: each rank visits its own.

    Attributes:
        peers: this process in its group.
        here: the keys of this rank that count.
    """

    peers: Peers
    here: tuple[HeldKeys, ...]

    def carry(self, k: Tensor, v: Tensor, visit: Visit) -> None:
        """Calls `visit` with the keys of this rank.

        Args:
            k: the keys that this rank holds.
            v: their values.
            visit: is called with a run of positions, its keys and its values.
        """
        for run in self.here:
            visit((run.positions,), k[:, :, run.columns], v[:, :, run.columns])

    def carry_back(self, k: Tensor, v: Tensor, visit: Return) -> NoReturn:
        """Refused: a cache has no gradients.

        Args:
            k: the keys that this rank holds.
            v: their values.
            visit: is not called.
        """
        raise UnsupportedError("keys of a cache have no gradients: use torch.no_grad()")


def over_ranks(me: Peers, kept: Kept) -> Kept:
    """The states of the same rows on all ranks, merged in the order of ranks.

    Args:
        me: this process in its group.
        kept: of the keys of this rank, as StateMerging keeps it.
    """
    if me.size == 1:
        return kept
    mine, width = state_of(kept), kept[4].shape[-1]
    return kept_of(reduce(merge, (_opened(x, width) for x in me.gather(_sealed(mine)))))


def _sealed(state: RowState) -> Tensor:
    """A state as one tensor; integers keep their bits."""
    floats = state.m, state.l, state.t, state.u, state.c, rest_of(state), spread_of(state)
    rows = torch.stack(floats, -1)
    counts = torch.stack([state.visible.expand_as(state.argmax), state.argmax], -1)
    return torch.cat([rows, state.o, counts.contiguous().view(rows.dtype)], -1)


def _opened(x: Tensor, width: int) -> RowState:
    counts = x[..., 7 + width :].clone(memory_format=torch.contiguous_format).view(torch.int64)
    m, l, t, u, c, rest, spread = x[..., :7].unbind(-1)
    o, visible, argmax = x[..., 7 : 7 + width], counts[..., 0], counts[..., 1]
    return RowState(m, l, t, u, c, o, visible, argmax, rest, spread)
