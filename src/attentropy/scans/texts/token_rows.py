"""Every row of attention on one text: its statistics, and the keys that it looks at.

Weights are made of q and k for a few rows at a time, so that no n x n table exists.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from attentropy.core.results import Stats
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


def weight_rows(asked: ModelCall, stats: Stats) -> Iterator[tuple[slice, Tensor]]:
    """Weights [H,R,K] of the first text of a call, for some queries at a time.

    Args:
        asked: the call.
        stats: the statistics of its rows, of which lse is read.
    """
    if stats.lse is None:
        raise TypeError("weights that are not softmax have no lse")
    lse = stats.lse[0].detach()
    lse = lse.masked_fill(lse.isneginf(), 0.0)  # a row that sees nothing has weights of 0
    heads, queries = lse.shape
    step = max(1, ELEMENTS // max(1, heads * asked.call.k.shape[2]))
    for start in range(0, queries, step):
        rows = slice(start, min(start + step, queries))
        yield rows, row_logits(asked.call, rows)[0].sub_(lse[:, rows, None]).exp_()


@torch.no_grad()
def _statistics(asked: ModelCall, stats: Stats) -> dict[str, Tensor]:
    """ROW_STATISTICS of every token, [H,N]; `received` is about the tokens as keys."""
    distances, sinks = [], []
    received = torch.zeros((), dtype=torch.float64)
    for rows, weights in weight_rows(asked, stats):
        distances.append(_distance(asked, rows, weights))
        sinks.append(weights[..., 0])
        received = received.to(weights.device) + weights.sum(1, dtype=torch.float64)
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


def _distance(asked: ModelCall, rows: slice, weights: Tensor) -> Tensor:
    """sum_j p_ij |i - j| for these rows, [H,R]; NaN in cross-attention."""
    if asked.mask.positions is None:
        return weights.new_full(weights.shape[:2], torch.nan)
    own = asked.mask.positions[rows, None]
    away = (own - torch.arange(weights.shape[2], device=weights.device)).abs()
    return torch.einsum("hrk,rk->hr", weights, away.to(weights.dtype))


@torch.no_grad()
def _looks(asked: ModelCall, stats: Stats, heads: tuple[int, ...], most: int) -> Looks:
    parts: list[tuple[Tensor, ...]] = []
    best, by, total = None, None, torch.zeros((), dtype=torch.float64)
    for rows, every in weight_rows(asked, stats):
        weights = every[list(heads)]
        largest = weights.topk(min(most, weights.shape[2]), -1)
        parts.append((largest.values, largest.indices))
        best, by = _readers(best, by, weights, rows.start, most)
        total = total.to(weights.device) + weights.sum(1, dtype=torch.float64)
    if best is None or by is None:
        raise TypeError("a call has one row or more")
    values, index = (torch.cat(part, 1) for part in zip(*parts, strict=True))
    return Looks(
        heads,
        index.masked_fill(values == 0, -1).cpu(),
        values.cpu(),
        (1 - values.sum(-1, dtype=torch.float64)).clamp(min=0).float().cpu(),
        by.masked_fill(best == 0, -1).cpu(),
        best.cpu(),
        (total - best.sum(-1, dtype=torch.float64)).clamp(min=0).float().cpu(),
    )


def _readers(
    best: Tensor | None, by: Tensor | None, weights: Tensor, start: int, most: int
) -> tuple[Tensor, Tensor]:
    """The largest weights of each key so far, [H,K,T], and the queries that have them."""
    found = weights.mT.topk(min(most, weights.shape[1]), -1)
    values, index = found.values, found.indices + start
    if best is not None and by is not None:
        values, index = torch.cat((best, values), -1), torch.cat((by, index), -1)
        values, order = values.topk(min(most, values.shape[-1]), -1)
        index = index.gather(-1, order)
    return values, index
