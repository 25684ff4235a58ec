"""The row state: all that attention over some keys leaves behind, and how two of them merge.

With s the logits of a row over a set of keys and m their maximum,

    l = sum e^(s-m),  t = sum (s-m) e^(s-m),  c = sum e^(2(s-m)),  o = sum e^(s-m) v.

`merge` joins the states of two sets of keys exactly; it is associative, commutative up to
rounding, and `blind` is its identity. Everything is read off the state:

    out = o/l,  lse = m + log l,  entropy = log l - t/l,  sum p^2 = c/l^2.

t is never positive, so both terms of the entropy are non-negative and nothing cancels.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from attentropy.core.results import Attended, Stats


class RowState(NamedTuple):
    """m, l, t, c [...,Q], o [...,Q,Dv], and per row: visible keys, and the key of the maximum."""

    m: Tensor
    l: Tensor
    t: Tensor
    c: Tensor
    o: Tensor
    visible: Tensor
    argmax: Tensor


def blind(shape: tuple[int, ...], width: int, *, like: Tensor) -> RowState:
    """The state of rows that saw nothing: the identity of `merge`."""
    zero = like.new_zeros(shape)
    none = torch.zeros(shape, dtype=torch.int64, device=like.device)
    return RowState(
        torch.full_like(zero, -torch.inf), zero, zero, zero, like.new_zeros(*shape, width),
        none, none - 1,
    )  # fmt: skip


def from_tile(
    logits: Tensor, value: Tensor, *, first: int = 0, visible: Tensor | None = None
) -> RowState:
    """The state of logits [...,Q,T] over values [...,T,Dv]; -inf hides a key.

    `first` is the index of the tile's first key; `visible` counts the keys of each row, those
    above -inf if it is not given.
    """
    if visible is None:
        visible = (~logits.isneginf()).sum(-1)
    if not logits.shape[-1]:
        return blind(tuple(logits.shape[:-1]), value.shape[-1], like=logits)
    m, argmax = logits.max(-1)
    z = logits - pivot(m)[..., None]
    e = z.exp()
    z = z.masked_fill(e == 0, 0.0)
    return RowState(
        m,
        e.sum(-1),
        (e * z).sum(-1),
        e.square().sum(-1),
        e @ value,
        visible,
        (argmax + first).masked_fill(m.isneginf(), -1),
    )


def pivot(m: Tensor) -> Tensor:
    """m, and 0 where no key was seen, so that inf - inf never arises."""
    return m.masked_fill(m.isneginf(), 0.0)


def merge(a: RowState, b: RowState) -> RowState:
    """The state of the union of two disjoint sets of keys."""
    m = torch.maximum(a.m, b.m)
    parts = [_raised(state, pivot(m)) for state in (a, b)]
    l, t, c, o = (one + two for one, two in zip(*parts, strict=True))
    # of ties the lowest key; a blind part has key -1 and never wins
    first = (a.m > b.m) | ((a.m == b.m) & ((a.argmax <= b.argmax) | (b.argmax < 0)))
    first = (first & (a.argmax >= 0)) | (b.argmax < 0) | a.m.isnan()
    argmax = torch.where(first, a.argmax, b.argmax)
    return RowState(m, l, t, c, o, a.visible + b.visible, argmax)


def _raised(state: RowState, m: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """l, t, c and o of a state about a higher maximum m."""
    delta = (state.m - m).masked_fill(state.m.isneginf(), 0.0)
    decay = delta.exp()
    t = state.t + (delta * state.l).masked_fill(decay == 0, 0.0)
    return decay * state.l, decay * t, decay.square() * state.c, decay[..., None] * state.o


def read(state: RowState) -> Attended:
    """Output and statistics of a state, as the numeric contract has them for blind rows."""
    seen = state.visible > 0
    l = state.l.masked_fill(~seen, 1.0)
    log_l = l.log()
    stats = Stats(
        entropy=log_l - state.t / l,
        lse=state.m + log_l,
        max_logit=state.m,
        argmax=state.argmax,
        collision=state.c / l.square(),
        visible=state.visible,
    )
    return Attended(state.o / l[..., None], stats)


def with_sink(attended: Attended, sink: Tensor) -> Attended:
    """One more outcome of logit `sink`, broadcastable to the rows, that has no value.

    Merges the state (sink, 1, 0, 1, 0) into rows that are read already; differentiable.
    """
    out, stats = attended
    assert stats.lse is not None  # only probabilities take a sink
    assert stats.entropy is not None
    sink = sink.to(stats.lse.dtype).expand_as(stats.lse)
    kept, lost, lse = _shares(stats.lse, sink)
    entropy = kept * stats.entropy + _surprise(kept) + _surprise(lost)
    joined = Stats(
        entropy=entropy,
        lse=lse,
        max_logit=stats.max_logit,
        argmax=stats.argmax,
        collision=kept.square() * stats.collision + lost.square(),
        visible=stats.visible,
        sink_mass=lost,
    )
    return Attended(out * kept[..., None].to(out.dtype), joined)


def _shares(lse: Tensor, sink: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mass of the keys, mass of the sink, log-sum-exp of both; safe at lse = -inf."""
    unseen = lse.isneginf()
    gap = lse.masked_fill(unseen, 0.0) - sink
    kept = gap.sigmoid().masked_fill(unseen, 0.0)
    lost = (-gap).sigmoid().masked_fill(unseen, 1.0).masked_fill(unseen & sink.isneginf(), 0.0)
    both = torch.logaddexp(lse.masked_fill(unseen, 0.0), sink)
    return kept, lost, torch.where(unseen, sink, both)


def _surprise(p: Tensor) -> Tensor:
    """-p log p, with a gradient of 0 at p = 0."""
    return -(p * p.masked_fill(p == 0, 1.0).log())
