"""Every row of attention on one text: its statistics, and the keys that it looks at.

Weights are made of q and k for a few rows at a time, so that no n x n table exists.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from attentropy.core.results import Stats
from attentropy.core.visibility import Span
from attentropy.kernels.tiled.logits import row_logits
from attentropy.models.record.accumulators import Owner
from attentropy.models.record.model_call import ModelCall
from attentropy.models.record.recorder import Recorder
from attentropy.scans.texts.sides import Side

ELEMENTS = 1 << 22  # weights that exist at a time
ROW_STATISTICS = ("entropy", "varentropy", "distance", "sink_mass", "received", "top_probability")


@dataclass(frozen=True, eq=False)
class Looks:
    """The largest weights of each token of some heads, [H,N,T], sorted from the largest down.

    Attributes:
        heads: numbers of the heads in their layer.
        keys: the tokens that a query looks at most; -1 where it sees fewer.
        weights: their weights; 0 where there is none.
        rest: the sum of all other weights of the row, [H,N], a learned sink among them.
        readers: the tokens that look at a key most; -1 where fewer see it.
        reader_weights: their weights.
        reader_rest: what all other queries give to the key, [H,N].
    """

    heads: tuple[int, ...]
    keys: Tensor
    weights: Tensor
    rest: Tensor
    readers: Tensor
    reader_weights: Tensor
    reader_rest: Tensor

    def placed(self, queries: Side, keys: Side, count: int) -> "Looks":
        """The same among all `count` tokens, where a layer's queries and keys are some of them.

        Args:
            queries: the tokens that ask.
            keys: the tokens that are looked at.
            count: number of all tokens.
        """

        def spread(values: Tensor, side: Side, empty: float) -> Tensor:
            shape = (values.shape[0], count, *values.shape[2:])
            found = values.new_full(shape, empty)
            found[:, side.start : side.start + side.count] = values
            return found

        def moved(places: Tensor, side: Side) -> Tensor:
            return torch.where(places < 0, -1, places + side.start)

        return Looks(
            self.heads,
            spread(moved(self.keys, keys), queries, -1),
            spread(self.weights, queries, 0.0),
            spread(self.rest, queries, torch.nan),
            spread(moved(self.readers, queries), keys, -1),
            spread(self.reader_weights, keys, 0.0),
            spread(self.reader_rest, keys, torch.nan),
        )


def is_one_text(asked: ModelCall, stats: Stats) -> str:
    """Why the rows of a call are not those of one text; "" if they are.

    Args:
        asked: the call.
        stats: the statistics of its rows.
    """
    if stats.lse is None:
        return "its weights are not softmax"
    batch = asked.call.q.shape[0]
    return "" if batch == 1 else f"it attends in {batch} windows"


class RowRecorder(Recorder):
    """Keeps ROW_STATISTICS of every token, [H,N] each, by the place of the call.

    Attributes:
        rows: the statistics.
        odd: why calls of other places have none.
    """

    def __init__(self) -> None:
        super().__init__(every=1, keep="mean", sample=1)
        self.rows: dict[str, dict[str, Tensor]] = {}
        self.odd: dict[str, str] = {}

    def prepare(
        self, owner: Owner, asked: ModelCall, out: Tensor | None, stats: Stats
    ) -> Callable[[], None]:
        """Keep the rows of one call, and measure it as every recorder does."""
        commit, place = super().prepare(owner, asked, out, stats), place_of(owner)
        why = is_one_text(asked, stats)
        if why:
            self.odd[place] = why
        else:
            self.rows[place] = _statistics(asked, stats)
        return commit


class LookRecorder(Recorder):
    """Keeps the largest weights of chosen heads, by the place of the call.

    Args:
        chosen: heads by place.
        most: number of weights that are kept of each token.
    """

    def __init__(self, chosen: dict[str, tuple[int, ...]], *, most: int) -> None:
        super().__init__(every=1, keep="mean", sample=1)
        self.chosen, self.most = chosen, most
        self.looks: dict[str, Looks] = {}

    def prepare(
        self, owner: Owner, asked: ModelCall, out: Tensor | None, stats: Stats
    ) -> Callable[[], None]:
        """Keep the largest weights of one call, and measure it as every recorder does."""
        commit, place = super().prepare(owner, asked, out, stats), place_of(owner)
        heads = self.chosen.get(place)
        if heads and not is_one_text(asked, stats):
            self.looks[place] = _looks(asked, stats, heads, self.most)
        return commit


def place_of(owner: Owner) -> str:
    """The name of the place of the call that is recorded now."""
    call = sum(owner.calls.values())
    return f"{owner.name}#{call}" if call else owner.name


class WeightTile(NamedTuple):
    """Weights of some queries with some keys.

    Attributes:
        queries: which queries.
        keys: which keys; the queries see no others, or it is one block of keys.
        weights: [H,R,T].
    """

    queries: slice
    keys: slice
    weights: Tensor


def weight_rows(asked: ModelCall, stats: Stats) -> Iterator[WeightTile]:
    """Weights of the first text of a call, for some queries at a time and all keys that they see.

    Args:
        asked: the call.
        stats: the statistics of its rows, of which lse is read.
    """
    lse, seen, count = _lse(stats), asked.call.seen, asked.call.k.shape[2]
    for rows in _blocks(lse.shape[1], lse.shape[0] * count):
        limits = seen.select(Span(queries=rows)).limits()
        first = min(max(limits.lo[0], 0), count - 1)
        keys = slice(first, max(min(limits.hi[1], count), first + 1))
        yield _tile(asked, lse, rows, keys)


def weight_columns(asked: ModelCall, stats: Stats) -> Iterator[WeightTile]:
    """Weights of the first text of a call, for some keys at a time and all queries that see them.

    Args:
        asked: the call.
        stats: the statistics of its rows, of which lse is read.
    """
    lse, count = _lse(stats), asked.call.k.shape[2]
    lo, hi = asked.call.seen.bounds()
    for keys in _blocks(count, lse.numel()):
        found = _seeing(lo, hi, keys, lse[0]).nonzero()
        rows = slice(int(found[0]), int(found[-1]) + 1) if len(found) else slice(0, 1)
        yield _tile(asked, lse, rows, keys)


def _lse(stats: Stats) -> Tensor:
    """[H,Q]; 0 for a row that sees nothing, whose weights are 0."""
    if stats.lse is None:
        raise TypeError("weights that are not softmax have no lse")
    lse = stats.lse[0].detach()
    return lse.masked_fill(lse.isneginf(), 0.0)


def _blocks(count: int, others: int) -> Iterator[slice]:
    """Slices of `count`, each with at most ELEMENTS weights; an entry has `others`."""
    step = max(1, ELEMENTS // max(1, others))
    return (slice(start, min(start + step, count)) for start in range(0, count, step))


def _seeing(lo: Tensor | None, hi: Tensor | None, keys: slice, rows: Tensor) -> Tensor:
    """Which of the rows [Q] may see one of the keys, by their bounds in any head."""
    found = torch.ones_like(rows, dtype=torch.bool)
    if lo is not None:
        found = found & (lo[0] < keys.stop).any(0)
    if hi is not None:
        found = found & (hi[0] > keys.start).any(0)
    return found


def _tile(asked: ModelCall, lse: Tensor, rows: slice, keys: slice) -> WeightTile:
    logits = row_logits(asked.call, rows, keys=keys)[0]
    return WeightTile(rows, keys, logits.sub_(lse[:, rows, None]).exp_())


@torch.no_grad()
def _statistics(asked: ModelCall, stats: Stats) -> dict[str, Tensor]:
    """ROW_STATISTICS of every token, [H,N]; `received` is about the tokens as keys."""
    distances, sinks = [], []
    keys = asked.call.k.shape[2]
    received = torch.zeros(
        asked.call.q.shape[1], keys, dtype=torch.float64, device=asked.call.q.device
    )
    for tile in weight_rows(asked, stats):
        distances.append(_distance(asked, tile))
        sinks.append(tile.weights[..., 0] * (tile.keys.start == 0))
        received[:, tile.keys] += tile.weights.sum(1)
    sink = torch.cat(sinks, -1)
    if stats.sink_mass is not None:
        sink = sink + stats.sink_mass[0].detach()
    found = {
        "entropy": _of_first(stats.entropy),
        "varentropy": _of_first(stats.varentropy),
        "distance": torch.cat(distances, -1),
        "sink_mass": sink,
        "received": received,
        "top_probability": _of_first(stats.top_probability),
    }
    return {name: found[name].float().cpu() for name in ROW_STATISTICS}


def _of_first(value: Tensor | None) -> Tensor:
    if value is None:
        raise TypeError("a softmax has all statistics")
    return value[0].detach()


def _distance(asked: ModelCall, tile: WeightTile) -> Tensor:
    """sum_j p_ij |i - j| for these rows, [H,R]; NaN in cross-attention."""
    weights = tile.weights
    if asked.mask.positions is None:
        return weights.new_full(weights.shape[:2], torch.nan)
    own = asked.mask.positions[tile.queries, None]
    keys = torch.arange(tile.keys.start, tile.keys.stop, device=weights.device)
    return torch.einsum("hrk,rk->hr", weights, (own - keys).abs().to(weights.dtype))


@torch.no_grad()
def _looks(asked: ModelCall, stats: Stats, heads: tuple[int, ...], most: int) -> Looks:
    chosen = list(heads)
    rows = [_largest(t.weights[chosen], most, t.keys.start) for t in weight_rows(asked, stats)]
    columns = [
        _largest(t.weights[chosen].mT, most, t.queries.start) for t in weight_columns(asked, stats)
    ]
    keys, weights, _ = (torch.cat(part, 1) for part in zip(*rows, strict=True))
    readers, given, total = (torch.cat(part, 1) for part in zip(*columns, strict=True))
    ones = torch.ones_like(weights[..., 0], dtype=torch.float64)
    return Looks(
        heads,
        *(keys.cpu(), weights.cpu(), _rest(ones, weights)),
        *(readers.cpu(), given.cpu(), _rest(total, given)),
    )


def _largest(weights: Tensor, most: int, start: int) -> tuple[Tensor, Tensor, Tensor]:
    """Places and values of the `most` largest of each row [H,R,most], and the sum of all [H,R].

    Where there are fewer, the others are 0, at -1.
    """
    values, index = weights.topk(min(most, weights.shape[2]), -1)
    index = (index + start).masked_fill(values == 0, -1)
    missing = (0, most - values.shape[2])
    total = weights.sum(-1, dtype=torch.float64)
    return F.pad(index, missing, value=-1), F.pad(values, missing), total


def _rest(total: Tensor, largest: Tensor) -> Tensor:
    """What is left of the total, [H,N]."""
    return (total - largest.sum(-1, dtype=torch.float64)).clamp(min=0).float().cpu()
