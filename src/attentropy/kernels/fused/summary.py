"""Sums over the rows of a call for each head, in C++: what a watch keeps of a call.

`attentropy.models.record.measures` defines the same sums in torch, and serves where this does not.
"""

import ctypes
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from attentropy.core.call import Call
from attentropy.core.results import Stats
from attentropy.kernels.fused.block import Fields, Struct, Words, block, heads, pointer, spread
from attentropy.kernels.fused.kernel import described, lacks, loaded, readable

SUMMARY = Struct("Summary")
NAMES = frozenset(n.removeprefix("at_") for n in SUMMARY.layout if n.startswith("at_"))
"""What can be summed."""
_READ = ("entropy", "lse", "max_logit", "collision", "varentropy")


class SummedRows(NamedTuple):
    """Which rows of a call are summed.

    Attributes:
        visible: number of visible keys, int64, broadcastable to [B,H,Q].
        counted: rows that count, bool, broadcastable to [B,H,Q]; None for all from `start` on.
        start: the first row that may count.
        sampled: queries whose weights are looked at one by one, int64 [R].
        position: of each query among the keys, int64 [Q]; None if they have none.
        first: the first key that any query of an entry sees, int64 [1 or B]; None if it is key 0.
        step: one row in so many is looked at for the weight of the first key.
    """

    visible: Tensor
    counted: Tensor | None
    start: int
    sampled: Tensor
    position: Tensor | None
    first: Tensor | None
    step: int


def serves(call: Call) -> bool:
    """Whether the rows of a call can be summed here.

    Args:
        call: a resolved call.
    """
    if call.relative is not None or call.slopes is not None or call.sink is not None:
        return False
    return call.seen.predicate is None and lacks(call) is None


def fields(rows: SummedRows, shape: tuple[int, ...], places: Iterable[str]) -> dict[str, Words]:
    """The fields of struct Summary for some rows, without where the sums are.

    Args:
        rows: which rows are summed.
        shape: [B,H,Q].
        places: names of the sums, in their order.
    """
    found: dict[str, Words] = {f"at_{name}": (-1,) for name in NAMES}
    for place, name in enumerate(places):
        found[f"at_{name}"] = (place,)
    found["visible"] = spread(rows.visible, shape)
    if rows.counted is not None:
        found["counted"] = spread(rows.counted, shape)
    found["sampled"], found["samples"] = pointer(rows.sampled), (len(rows.sampled),)
    found["position"] = pointer(rows.position)
    if rows.first is not None:
        found["first"] = rows.first.data_ptr(), int(len(rows.first) > 1)
    return found | {"start": (rows.start,), "step": (rows.step,)}


def add(call: Call, out: Tensor | None, stats: Stats, summary: Fields, into: list[Tensor]) -> None:
    """Add the sums of a call.

    Args:
        call: a resolved call.
        out: its output; None where only the weights are known.
        stats: the statistics of its rows.
        summary: what `fields` gave.
        into: the sums [N + H,H] and the largest logits [H], float64 and contiguous.
    """
    lib = loaded()
    x = readable(call, lib)
    read = {n: getattr(stats, n).detach().to(torch.float32).contiguous() for n in _READ}
    given = {n: pointer(value) for n, value in read.items()}
    if out is not None:
        out = out.detach().to(x.q.dtype)
        out = out if out.stride(3) == 1 else out.contiguous()
        given["out"] = heads(out)
    where = {"sums": pointer(into[0]), "top": pointer(into[1])}
    lib.summary(block(described(x), given), SUMMARY.pack(*SUMMARY.words(summary, where)))


class Summing:
    """Which rows of planned calls are summed, as the library reads it: a struct Summary.

    Args:
        rows: which rows are summed.
        shape: [B,H,Q].
        places: names of the sums, in their order.
    """

    def __init__(self, rows: SummedRows, shape: tuple[int, ...], places: Iterable[str]) -> None:
        self._rows = rows  # the struct has addresses of its tensors
        words = SUMMARY.words(fields(rows, shape, places))
        self._memory = ctypes.create_string_buffer(SUMMARY.pack(*words))
        self.address = ctypes.addressof(self._memory)
