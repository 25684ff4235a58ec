"""From one attention call to numbers per head: sums over its rows, so that calls add up exactly.

A row counts if its query is not padding and sees two keys or more. `ROWS` are summed over every
such row. `SAMPLED` (see the module of that name) need all weights of a row and are taken on a few
evenly spaced rows per call, so that memory stays O(n). Both begin with the number of rows summed,
and take their names from the table of statistics. Watching must be cheap, so passes over queries,
keys and outputs are few, and follow the order of memory.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import Parameter

from attentropy.core.call import Call
from attentropy.core.results import COMPUTED, Stats
from attentropy.core.statistics import SUMMED
from attentropy.kernels.fused import summary
from attentropy.kernels.fused.summary import SummedRows
from attentropy.kernels.tiled.logits import pair_logits, row_logits
from attentropy.models.record.model_call import ModelCall
from attentropy.models.record.model_masks import ModelMask
from attentropy.models.record.sampled import SAMPLED, SampledRows, rows_to_sample, sampled

RECORDED = COMPUTED - {"argmax"}
"""Statistics of a call that a watch reads."""
COUNTS = ("rows", "log_visible", "visible")
APART = ("sink_mass", "previous_share")  # each takes a pass of its own
READ = tuple(name for name in SUMMED if name not in (*COUNTS, *APART))
ROWS = (*COUNTS, *READ, *APART)
PLACES = (*ROWS, *("sampled_rows" if n == "rows" else n for n in SAMPLED), "overlap")
"""What the rows of HeadSums.sums are, as the compiled library names them."""
MANY = 1 << 17  # elements of queries; beyond, the first key's share is taken from some rows
PREVIOUS = SAMPLED.index("previous_of_sampled")
ROBUST = 1 / math.sqrt(math.e - 1)  # what unit Gaussian noise on the scores makes of sum p^2


@dataclass(frozen=True, eq=False)
class HeadSums:
    """Sums of one call per head.

    `sums` [len(ROWS) + len(SAMPLED) + H,H] are those of ROWS, those of SAMPLED, and the inner
    products of the heads' weights; `top` [H] is the largest logit.
    """

    sums: Tensor
    top: Tensor


@dataclass(frozen=True, eq=False)
class KeptRows:
    """All rows of one call, for profiles along the sequence.

    `entropy`, `max_logit` [B,H,Q]; `visible`, `counted` broadcastable to it; `distance` [B,H,R]
    for the queries `sampled` [R]; `position` [Q] is the place of each query among the keys.
    """

    entropy: Tensor
    max_logit: Tensor
    visible: Tensor
    counted: Tensor
    position: Tensor
    sampled: Tensor
    distance: Tensor


@dataclass(frozen=True, eq=False)
class CountedRows:
    """The rows that count: those from `start` on, or those of a bool `mask` [B or 1,H or 1,Q]."""

    start: int
    mask: Tensor | None = None

    @classmethod
    def of(cls, mask: ModelMask, visible: Tensor, counted: Tensor | None) -> "CountedRows":
        """Rows with two keys or more whose query is not padding.

        Args:
            mask: of the model.
            visible: number of visible keys, broadcastable to [B,H,Q].
            counted: queries that are not padding, broadcastable to [B,H,Q]; None if all are.
        """
        if mask.choice_from is not None and counted is None:
            return cls(mask.choice_from)
        return cls(0, visible >= 2 if counted is None else (visible >= 2) & counted)

    def fill(self, x: Tensor, value: float) -> Tensor:
        """Put a value into the other rows of a tensor, or leave these rows out.

        Args:
            x: [...,Q].
            value: the number to write.
        """
        if self.mask is None:
            return x[..., self.start :] if self.start else x
        return x.masked_fill(~self.mask, value)

    def table(self, queries: int, *, device: torch.device) -> Tensor:
        """Which rows count, bool [B or 1,H or 1,Q].

        Args:
            queries: number of rows.
            device: of the result.
        """
        if self.mask is not None:
            return self.mask
        return (torch.arange(queries, device=device) >= self.start).view(1, 1, -1)


@dataclass(frozen=True, eq=False)
class VisibleCounts:
    """What follows from the number n of visible keys: 1 / log n and 1 / sqrt n, [B or 1,H or 1,Q].

    `sums` [3,B or 1,H or 1] are those of 1, log n and n over the rows that count.
    """

    per_log: Tensor
    per_root: Tensor
    sums: Tensor

    @classmethod
    def of(cls, visible: Tensor, chosen: CountedRows, *, dtype: torch.dtype) -> "VisibleCounts":
        """Counts of the rows of one call.

        Args:
            visible: number of visible keys, broadcastable to [B,H,Q].
            chosen: the rows that count.
            dtype: of the quotients.
        """
        number = visible.double()
        if chosen.mask is not None:  # torch.broadcast_shapes would import sympy
            number, _ = torch.broadcast_tensors(number, chosen.mask)
        log = number.clamp(min=1).log()
        values = torch.stack((torch.ones_like(number), log, number))
        sums = chosen.fill(values, 0.0).sum(3)
        return cls((1 / log).to(dtype), number.rsqrt().to(dtype), sums)


@torch.no_grad()
def measure(
    asked: ModelCall,
    out: Tensor | None,
    stats: Stats,
    *,
    counted: Tensor | None,
    sample: int | None,
    every_row: bool = True,
) -> tuple[HeadSums, KeptRows | None]:
    """The sums of a call, and its rows.

    Args:
        asked: the call.
        out: its output [B,H,Q,Dv]; None where only the weights are known.
        stats: statistics of its rows.
        counted: queries that are not padding, broadcastable to [B,H,Q]; None if all are.
        sample: number of rows whose weights are looked at one by one; None for all.
        every_row: return the rows. Otherwise the share of the previous key, which needs a separate
            pass, comes from sampled rows only, and that of the first key from a few hundred rows of
            a long call.
    """
    visible = _small(stats.visible)
    chosen = CountedRows.of(asked.mask, visible, counted)
    if not every_row and _in_one_pass(asked.call):
        return _summary(asked, out, stats, visible, chosen, sample), None
    few = sampled(asked, stats, start=chosen.start, mask=chosen.mask, most=sample)
    whole = every_row or sample is None
    parts = (
        _sums(asked.mask, out, stats, visible, chosen),
        _sink(asked, stats, chosen, few, whole=whole),
        _previous(asked, stats, chosen, few, every_row=every_row),
        few.sums,
        few.overlap,
    )
    top = _or_nan(stats.max_logit, stats)
    highest = chosen.fill(top, -torch.inf).amax((0, 2)).double()
    sums = HeadSums(torch.cat(parts), highest)
    return sums, _kept(asked, stats, visible, chosen, few) if every_row else None


def _in_one_pass(call: Call) -> bool:
    """Does the compiled library sum the rows of the call, with all that is asked for?"""
    if not summary.NAMES.issuperset(PLACES) or torch.compiler.is_compiling():
        return False
    plain = all(type(x) in (Tensor, Parameter) for x in call[:3])  # else they may have no memory
    return plain and summary.serves(call)


def _summary(
    asked: ModelCall,
    out: Tensor | None,
    stats: Stats,
    visible: Tensor,
    chosen: CountedRows,
    sample: int | None,
) -> HeadSums:
    heads = stats.collision.shape[1]
    sums = torch.zeros(len(PLACES) - 1 + heads, heads, dtype=torch.float64, device="cpu")
    top = torch.full((heads,), -torch.inf, dtype=torch.float64, device="cpu")
    rows = summed_rows(asked.mask, visible, chosen, sample, elements=asked.call.q.numel())
    fields = summary.fields(rows, tuple(stats.collision.shape), PLACES)
    summary.add(asked.call, out, stats, fields, [sums, top])
    return HeadSums(sums, top)


def summed_rows(
    mask: ModelMask, visible: Tensor, chosen: CountedRows, sample: int | None, *, elements: int
) -> SummedRows:
    """The rows of a call that are summed in one pass.

    Args:
        mask: of the model.
        visible: number of visible keys, broadcastable to [B,H,Q].
        chosen: the rows that count.
        sample: number of rows whose weights are looked at one by one; None for all.
        elements: number of elements of the queries.
    """
    extent = mask.seen.extent
    index = rows_to_sample(extent.queries, sample, start=chosen.start, device=extent.device)
    first = None if mask.first is None else mask.first.reshape(-1).contiguous()
    every = chosen.mask is not None or sample is None
    step = 1 if every else max(1, elements // MANY)
    return SummedRows(visible, chosen.mask, chosen.start, index, mask.positions, first, step)


def _kept(
    asked: ModelCall, stats: Stats, visible: Tensor, chosen: CountedRows, few: SampledRows
) -> KeptRows:
    top, entropy = _or_nan(stats.max_logit, stats), _or_nan(stats.entropy, stats)
    queries, position = top.shape[2], asked.mask.positions
    if position is None:
        position = torch.arange(queries, device=top.device)
    table = chosen.table(queries, device=top.device)
    return KeptRows(entropy, top, visible, table, position, few.index, few.distance)


def _small(visible: Tensor) -> Tensor:
    """[B,H,Q] without the dimensions that it was expanded along."""
    batch = slice(None) if visible.shape[0] > 1 and visible.stride(0) else slice(0, 1)
    heads = slice(None) if visible.shape[1] > 1 and visible.stride(1) else slice(0, 1)
    return visible[batch, heads]


def _or_nan(value: Tensor | None, stats: Stats) -> Tensor:
    return torch.full_like(stats.collision, torch.nan) if value is None else value.detach()


def _sums(
    mask: ModelMask, out: Tensor | None, stats: Stats, visible: Tensor, chosen: CountedRows
) -> Tensor:
    """Sums of ROWS before the sink, [N,H]."""
    batch, heads, _ = stats.collision.shape
    counts = _counts(mask, visible, chosen, dtype=stats.collision.dtype)
    numbers = counts.sums.expand(-1, batch, heads).sum(1)
    values = _rows(out, stats, counts)
    rows = torch.stack([values[name] for name in READ])
    return torch.cat((numbers, chosen.fill(rows, 0.0).sum(3).double().sum(1)))


def _counts(
    mask: ModelMask, visible: Tensor, chosen: CountedRows, *, dtype: torch.dtype
) -> VisibleCounts:
    """Worked out once for layers that see alike."""
    if chosen.mask is not None or torch.compiler.is_compiling():
        return VisibleCounts.of(visible, chosen, dtype=dtype)
    name = (dtype, visible.shape, chosen.start)
    counts: VisibleCounts | None = mask.notes.get(name)
    if counts is None:
        counts = mask.notes[name] = VisibleCounts.of(visible, chosen, dtype=dtype)
    return counts


def _rows(out: Tensor | None, stats: Stats, counts: VisibleCounts) -> dict[str, Tensor]:
    """The readings of READ, [B,H,Q] each."""
    entropy, lse = _or_nan(stats.entropy, stats), _or_nan(stats.lse, stats)
    collision = stats.collision.detach()
    root = collision.rsqrt()
    return {
        "entropy": entropy,
        "perplexity": entropy.exp(),
        "varentropy": _or_nan(stats.varentropy, stats),
        "normalized_entropy": entropy * counts.per_log,
        "lse": lse,
        "top_probability": (_or_nan(stats.max_logit, stats) - lse).exp_(),
        "collision": collision,
        "density": root * counts.per_root,
        "noise_robustness": root.mul_(ROBUST),
        "output_norm": _or_nan(_norm(out, dtype=entropy.dtype), stats),
    }


def _norm(out: Tensor | None, *, dtype: torch.dtype) -> Tensor | None:
    """|out| of each row; models lay heads side by side, and that order is three times as fast."""
    if out is None:
        return None
    by_token = out.detach().transpose(1, 2)
    return torch.linalg.vector_norm(by_token, dim=-1, dtype=dtype).transpose(1, 2)


def _sink(
    asked: ModelCall, stats: Stats, chosen: CountedRows, few: SampledRows, *, whole: bool
) -> Tensor:
    """Sum of the weights of the first key, and of a learned sink, [1,H]."""
    learned = stats.sink_mass
    if few.first is not None:
        mass = few.first[None]
        if learned is None:
            return mass
        return mass + chosen.fill(learned.detach(), 0.0).sum((0, 2), dtype=torch.float64)
    if chosen.mask is None:
        return _spaced_sink(asked, stats, chosen, whole=whole)
    first = (pair_logits(asked.call, _first_key(asked.mask)) - _or_nan(stats.lse, stats)).exp_()
    first = first if learned is None else first + learned.detach()
    return chosen.fill(first, 0.0).sum((0, 2), dtype=torch.float64)[None]


def _spaced_sink(asked: ModelCall, stats: Stats, chosen: CountedRows, *, whole: bool) -> Tensor:
    """The same of a long call: one row in so many is looked at, and stands for the others."""
    lse, call = _or_nan(stats.lse, stats), asked.call
    count = lse.shape[2] - chosen.start
    # in a graph, a step of its own would be a graph for every length
    every = whole or torch.compiler.is_compiling()
    step = 1 if every else max(1, call.q.numel() // MANY)
    rows = slice(chosen.start + (count - 1) % step, None, step)
    shown = call.seen._replace(lo=None, hi=None)  # these rows all see key 0
    mass = (row_logits(call, rows, keys=slice(0, 1), seen=shown)[..., 0] - lse[..., rows]).exp_()
    if stats.sink_mass is not None:
        mass = mass + stats.sink_mass.detach()[..., rows]
    return mass.mean(2, dtype=torch.float64).sum(0, keepdim=True) * count


def _first_key(mask: ModelMask) -> Tensor:
    """The first key that any query sees, [1 or B,1,1]."""
    if mask.first is not None:
        return mask.first
    return torch.zeros(1, 1, 1, dtype=torch.int64, device=mask.seen.extent.device)


def _previous(
    asked: ModelCall, stats: Stats, chosen: CountedRows, few: SampledRows, *, every_row: bool
) -> Tensor:
    """Sum of the weights of the key just before the query, [1,H]; NaN in cross-attention."""
    position, heads = asked.mask.positions, stats.collision.shape[1]
    if position is None or not every_row:
        return stats.collision.new_full((1, heads), torch.nan, dtype=torch.float64)
    if few.first is not None:
        return few.sums[PREVIOUS, None]
    before = pair_logits(asked.call, position.view(1, 1, -1) - 1)
    mass = (before - _or_nan(stats.lse, stats)).exp_()
    return chosen.fill(mass, 0.0).sum((0, 2), dtype=torch.float64)[None]
