"""Sums over the rows of a call for each head, in C++: what a watch keeps of a call.

`attentropy.models.record.measures` defines the same sums in torch, and serves where this does not.
"""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from attentropy.core.call import Call
from attentropy.core.results import Stats
from attentropy.core.visibility import Visibility
from attentropy.kernels.fused import library
from attentropy.kernels.fused.block import (
    ARGS,
    Fields,
    Struct,
    Words,
    block,
    heads,
    pointer,
    spread,
)
from attentropy.kernels.fused.kernel import (
    bounds_of,
    described,
    empty_like_rows,
    lacks,
    loaded,
    readable,
)

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


class RepeatedCall:
    """A call that comes again with other tensors: its output, and its sums, with nothing else done.

    Queries, keys and values must have the sizes, strides and type of those of the call; the
    library reads them as they are. Nothing is recorded for gradients.

    Args:
        call: a resolved call for which `repeats` is true.
    """

    def __init__(self, call: Call) -> None:
        self._scale = call.scale  # its address is among the words
        self._rows = call.q.shape[:3].numel()
        self._words = ARGS.words(described(call))

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, *, bounds: Words, summary: Words, into: list[Tensor]
    ) -> Tensor:
        """The output [B,H,Q,Dv].

        Args:
            q: queries [B,H,Q,D].
            k: keys [B,Hk,K,D].
            v: values [B,Hk,K,Dv].
            bounds: what `bounds_words` gave for the keys that are seen.
            summary: what `summary_words` gave for the rows that are summed.
            into: the sums [N + H,H] and the largest logits [H], float64 and contiguous.
        """
        out = empty_like_rows(q, v.shape[3])
        found = torch.empty(8, self._rows, dtype=torch.float32, device="cpu")
        words, at = self._words.copy(), found.data_ptr()
        words[_AT["q"]], words[_AT["k"]], words[_AT["v"]] = q.data_ptr(), k.data_ptr(), v.data_ptr()
        words[_AT["out"] : _AT["out"] + 4] = heads(out)
        words[_AT["lo"] : _AT["lo"] + len(bounds)] = bounds
        words[_AT["argmax"]] = at  # two words for each row
        for place, name in enumerate(_WRITTEN, start=2):
            words[_AT[name]] = at + 4 * place * self._rows
        whole = list(summary)
        whole[_SUMS : _SUMS + 2] = into[0].data_ptr(), into[1].data_ptr()
        lib, given = loaded(), ARGS.pack(*words)
        lib.forward(given)
        lib.summary(given, SUMMARY.pack(*whole))
        return out


_WRITTEN = (*_READ, "log_l")
_AT = {name: ARGS.place(name) for name in ("q", "k", "v", "out", "lo", "argmax", *_WRITTEN)}
_SUMS = SUMMARY.place("sums")
_BOUNDS = ("lo", "hi", "mask")


def repeats(call: Call) -> bool:
    """Whether a call may come again as a RepeatedCall.

    Args:
        call: a resolved call.
    """
    plain = call.bias is None and not call.dropout and call.q.dtype is torch.float32
    return (
        plain
        and serves(call)
        and library.serving is not None
        and (readable(call, library.serving) is call)
    )


def bounds_words(seen: Visibility) -> Words:
    """The fields of struct Args that say which keys are seen, as words.

    Args:
        seen: bounds, or a table.
    """
    fields = bounds_of(seen)
    words: list[float] = []
    for name in _BOUNDS:
        words += fields.get(name, (0,) * len(ARGS.layout[name]))
    return tuple(words)


def summary_words(summary: Fields) -> Words:
    """What `fields` gave, as words.

    Args:
        summary: fields of struct Summary.
    """
    return tuple(SUMMARY.words(summary))
