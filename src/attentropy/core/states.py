"""The row state: all that attention over some keys leaves behind, and how two of them merge.

With s the logits of a row over a set of keys and m their maximum,

    l = sum e^(s-m),  t = sum (s-m) e^(s-m),  u = sum (s-m)^2 e^(s-m),
    c = sum e^(2(s-m)),  o = sum e^(s-m) v.

`merge` joins the states of two sets of keys exactly; it is associative, commutative up to
rounding, and `blind` is its identity. Everything is read off the state:

    out = o/l,  lse = m + log l,  entropy = log l - t/l,  varentropy = u/l - (t/l)^2,
    sum p^2 = c/l^2.

t is never positive, so both terms of the entropy are non-negative and nothing cancels. Two more
sums have digits that l and u lose: `rest` = l - 1, where one key has nearly all the weight, and
`spread` = l varentropy, where one key stands above a flat rest. They merge too, and values are read
off them; gradients flow through l and u. Tiles of a kernel, processes that share a sequence, levels
of a hierarchy and attention sinks all merge here.
"""

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from attentropy.core.errors import ArgumentError
from attentropy.core.results import Attended, Stats

_NOTHING = -1e3  # e^-1000 is 0 in every precision


class RowState(NamedTuple):
    """The state of rows [...,Q] over a set of keys.

    Attributes:
        m: the largest logit; -inf for a row that saw nothing.
        l: sum e^(s-m).
        t: sum (s-m) e^(s-m).
        u: sum (s-m)^2 e^(s-m).
        c: sum e^(2(s-m)).
        o: sum e^(s-m) v, [...,Q,Dv].
        visible: number of visible keys.
        argmax: the key that has the largest logit, -1 for a row that saw nothing.
        rest: l - 1, the sum without the key of m; no gradient. None: as l says.
        spread: sum (s - m - t/l)^2 e^(s-m); no gradient. None: as u says.
    """

    m: Tensor
    l: Tensor
    t: Tensor
    u: Tensor
    c: Tensor
    o: Tensor
    visible: Tensor
    argmax: Tensor
    rest: Tensor | None = None
    spread: Tensor | None = None


def blind(shape: tuple[int, ...], width: int, *, like: Tensor) -> RowState:
    """The state of rows that saw nothing: the identity of `merge`.

    Args:
        shape: of the rows.
        width: of values, the last dimension of `o`.
        like: a tensor of the dtype and device wanted.
    """
    zero = like.new_zeros(shape)
    none = torch.zeros(shape, dtype=torch.int64, device=like.device)
    return RowState(
        torch.full_like(zero, -torch.inf), zero, zero, zero, zero, like.new_zeros(*shape, width),
        none, none - 1, zero - 1, zero,
    )  # fmt: skip


def from_tile(
    logits: Tensor, value: Tensor, *, first: int = 0, visible: Tensor | None = None
) -> RowState:
    """The state of the keys of a tile; differentiable.

    Args:
        logits: [...,Q,T]; -inf hides a key.
        value: [...,T,Dv].
        first: index of the tile's first key.
        visible: number of visible keys of each row; those above -inf if it is not given.
    """
    if visible is None:
        visible = (~logits.isneginf()).sum(-1)
    if not logits.shape[-1]:
        return blind(tuple(logits.shape[:-1]), value.shape[-1], like=logits)
    m, argmax = logits.max(-1)
    z = logits - pivot(m)[..., None]
    e = z.exp()
    z = z.masked_fill(e == 0, 0.0)
    weighted = e * z
    l, t = e.sum(-1), weighted.sum(-1)
    others = e.detach().scatter(-1, argmax[..., None], 0.0).sum(-1) + (l - l).detach()
    about = z.detach() - _over(t, l).detach()[..., None]
    return RowState(
        m,
        l,
        t,
        (weighted * z).sum(-1),
        e.square().sum(-1),
        e @ value,
        visible,
        (argmax + first).masked_fill(m.isneginf(), -1),
        others.masked_fill(m.isneginf(), -1.0),
        (e.detach() * about.square()).sum(-1),
    )


def _over(x: Tensor, l: Tensor) -> Tensor:
    """x / l, and x where no key was seen."""
    return x / l.masked_fill(l == 0, 1.0)


def pivot(m: Tensor) -> Tensor:
    """The maximum m, and 0 where no key was seen, so that inf - inf never arises.

    Args:
        m: largest logits.
    """
    return m.masked_fill(m.isneginf(), 0.0)


def merge(a: RowState, b: RowState) -> RowState:
    """The state of the union of two disjoint sets of keys; differentiable.

    Args:
        a: the state of some keys.
        b: the state of other keys, for the same rows.

    >>> one = from_tile(torch.tensor([[1.0, 2.0]]), torch.ones(2, 1))
    >>> two = from_tile(torch.tensor([[3.0]]), torch.ones(1, 1), first=2)
    >>> whole = from_tile(torch.tensor([[1.0, 2.0, 3.0]]), torch.ones(3, 1))
    >>> all(torch.allclose(x, y) for x, y in zip(merge(one, two), whole))
    True
    """
    m, argmax = strongest((a.m.detach(), a.argmax), (b.m.detach(), b.argmax))
    (fall_a, x), (fall_b, y) = _about(a, m), _about(b, m)
    o = fall_a[..., None] * a.o + fall_b[..., None] * b.o
    l, t, u, c, rest, spread = _union(x, y, m=m, of_x=a.m)
    return RowState(m, l, t, u, c, o, a.visible + b.visible, argmax, rest, spread)


def rescaled(state: RowState, m: Tensor) -> RowState:
    """The state with its sums taken about another m, at least its own.

    Nothing that is read off a state depends on m, which is a constant for gradients.

    Args:
        state: any state.
        m: the other maximum, not differentiable.
    """
    decay, sums = _about(state, m)
    return state._replace(m=m, o=decay[..., None] * state.o, **sums._asdict())


def rest_of(state: RowState) -> Tensor:
    """l - 1, to its own digits where they are known.

    Args:
        state: any state.
    """
    return state.l.detach() - 1 if state.rest is None else state.rest


def spread_of(state: RowState) -> Tensor:
    """sum (s - m - t/l)^2 e^(s-m), to its own digits where they are known; not below 0.

    Args:
        state: any state.
    """
    if state.spread is not None:
        return state.spread
    mean = _over(state.t, state.l).detach()
    return torch.addcmul(state.u.detach(), mean, state.t.detach(), value=-1.0).clamp(min=0.0)


class _Sums(NamedTuple):
    """The sums of a state that its statistics are read off."""

    l: Tensor
    t: Tensor
    u: Tensor
    c: Tensor
    rest: Tensor
    spread: Tensor


def _about(state: RowState, m: Tensor) -> tuple[Tensor, _Sums]:
    """e^(state.m - m), and the sums of a state about m."""
    delta = (state.m - pivot(m)).clamp(min=_NOTHING)
    decay = delta.exp()
    t = torch.addcmul(state.t, delta, state.l)
    u = torch.addcmul(state.u, delta, state.t + t)
    with torch.no_grad():  # exact where the maximum stays: l has all digits where it does not
        rest, spread = decay * rest_of(state) + delta.expm1(), decay * spread_of(state)
    l, t, u, c = decay * state.l, decay * t, decay * u, decay.square() * state.c
    return decay, _Sums(l, t, u, c, rest, spread)


def _union(x: _Sums, y: _Sums, *, m: Tensor, of_x: Tensor) -> _Sums:
    """Sums of two sets of keys together, both about m; the maximum of the first is `of_x`."""
    l, t, u, c = (p + q for p, q in zip(x[:4], y[:4], strict=True))
    with torch.no_grad():
        rest = torch.where(of_x == m, x.rest + y.l, y.rest + x.l)
        gap = _over(x.t, x.l) - _over(y.t, y.l)
        spread = x.spread + y.spread + _over(gap.square() * x.l * y.l, l)
    return _Sums(l, t, u, c, rest, spread)


def strongest(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """The larger of two maxima, and its key: of ties the lowest, and NaN above everything.

    Args:
        a: largest logits and the keys that have them; key -1 where no key was seen.
        b: the same for other keys.
    """
    (m_a, key_a), (m_b, key_b) = a, b
    m = torch.maximum(m_a, m_b)
    has_a, has_b = ((x == m) | x.isnan() for x in (m_a, m_b))
    lower = (key_a <= key_b) | ~has_b | (key_b < 0)
    return m, torch.where(has_a & lower & (key_a >= 0), key_a, key_b)


def repeated(state: RowState, times: int) -> RowState:
    """The state of the same keys, each repeated `times` times.

    Args:
        state: of the single keys.
        times: at least 1.
    """
    return state._replace(
        l=times * state.l,
        t=times * state.t,
        u=times * state.u,
        c=times * state.c,
        o=times * state.o,
        visible=times * state.visible,
        argmax=torch.where(state.argmax < 0, state.argmax, times * state.argmax),
        rest=times * rest_of(state) + (times - 1),
        spread=times * spread_of(state),
    )


def read(state: RowState) -> Attended:
    """The output and the statistics of attention over the keys of a state; differentiable.

    Args:
        state: of any set of keys. A row that saw nothing reads as zeros, with lse and max_logit
            -inf and argmax -1.
    """
    # rows of visible -inf keep l = 0, and read as NaN
    unseen = (state.l == 0) & (state.visible == 0)
    l, rest = state.l.masked_fill(unseen, 1.0), rest_of(state).masked_fill(unseen, 0.0)
    sums = _Sums(l, state.t, state.u, state.c, rest, spread_of(state))
    stats = Stats(
        max_logit=state.m,
        argmax=state.argmax,
        visible=state.visible,
        **_statistics(state.m, sums),
    )
    return Attended(state.o / l[..., None], stats)


def _statistics(m: Tensor, sums: _Sums) -> dict[str, Tensor]:
    """Entropy, lse, collision and varentropy."""
    l, t, u, c, rest, spread = sums
    log_l, mean = _with_value(l.log(), rest.log1p()), t / l
    return {
        "entropy": log_l - mean,
        "lse": torch.where(m.isinf(), m, m + log_l),
        "collision": c / l.square(),
        "varentropy": _with_value(torch.addcmul(u / l, mean, mean, value=-1.0), spread / l),
    }


def unread(attended: Attended, *, log_l: Tensor | None = None, first: int = 0) -> RowState:
    """The state of softmax attention from its results: the inverse of `read`; differentiable.

    Args:
        attended: output and statistics of softmax attention.
        log_l: log of l, where it is known better than by lse - max_logit, which has the rounding
            of large logits.
        first: index of the key that `argmax` counts as 0.
    """
    out, stats = attended
    state = _without_values(stats, log_l)
    shown = out.to(state.l.dtype).masked_fill(state.m.isneginf()[..., None], 0.0)
    argmax = torch.where(state.argmax < 0, state.argmax, state.argmax + first)
    return state._replace(o=shown * state.l[..., None], argmax=argmax)


def _without_values(stats: Stats, log_l: Tensor | None) -> RowState:
    """The state of statistics, with values of width 0."""
    entropy, lse, m, argmax = stats.entropy, stats.lse, stats.max_logit, stats.argmax
    spread = stats.varentropy
    if entropy is None or lse is None or m is None or argmax is None or spread is None:
        raise ArgumentError("stats", "those of softmax weights, which have an entropy", "others")
    # keys whose logits are all -inf weigh nothing, whatever was made of their row
    none = m.isneginf()
    if log_l is None or lse.requires_grad:
        grown = (lse - m).masked_fill(none, 0.0)
        known = grown.clamp(min=0.0) if log_l is None else log_l.masked_fill(none, 0.0)
        log_l = _with_value(grown, known)
    l = log_l.exp().masked_fill(none, 0.0)
    mean = log_l - entropy
    mean = _with_value(mean, mean.clamp(max=0.0))
    sums = (l * mean, l * torch.addcmul(spread, mean, mean), stats.collision * l.square())
    t, u, c = (x.masked_fill(none, 0.0) for x in sums)
    rest = log_l.detach().expm1().masked_fill(none, -1.0)
    around = (l * spread).detach().masked_fill(none, 0.0)
    o = l.new_empty(*l.shape, 0)
    return RowState(m, l, t, u, c, o, stats.visible, argmax, rest, around)


def _with_value(x: Tensor, value: Tensor) -> Tensor:
    """A tensor with this value and the gradient of x."""
    return x + (value - x).detach() if x.requires_grad else value


def with_sink(attended: Attended, sink: Tensor, *, log_l: Tensor | None = None) -> Attended:
    """Attention with one more outcome that has no value: the state (sink, 1, 0, 0, 1, 0) merged in.

    Args:
        attended: softmax attention over the keys.
        sink: the logit of the outcome, broadcastable to the rows; -inf adds no outcome.
        log_l: as in `unread`.

    Returns:
        The same rows with the sink in entropy, lse, collision and varentropy, its probability in
        sink_mass, and the output times what it leaves to the keys. max_logit, argmax and visible
        are those of the keys. Differentiable.
    """
    out, stats = attended
    keys = _without_values(stats, log_l)
    sink = sink.to(keys.l.dtype).expand_as(keys.l)
    m = torch.maximum(keys.m.detach(), sink.detach())
    one, zero = torch.ones_like(keys.l), torch.zeros_like(keys.l)
    outcome = keys._replace(m=sink, l=one, t=zero, u=zero, c=one, rest=zero, spread=zero)
    (_, x), (weight, y) = _about(keys, m), _about(outcome, m)
    sums = _union(x, y, m=m, of_x=keys.m)
    nothing = (stats.visible == 0) & sink.isneginf()
    whole, rest = sums.l.masked_fill(nothing, 1.0), sums.rest.masked_fill(nothing, 0.0)
    # of the two forms the one whose derivative does not subtract numbers near 1
    mass = torch.where(weight <= x.l, weight / whole, 1 - x.l / whole)
    joined = replace(stats, sink_mass=mass, **_statistics(m, sums._replace(l=whole, rest=rest)))
    # keys that are all -inf weigh nothing beside a sink, whatever their output was
    alone = keys.m.isneginf() & ~sink.isneginf()
    # rounded after the product: a factor of 16 bits would have a gradient of 16 bits
    out = (out * (x.l / whole)[..., None]).to(out.dtype)
    return Attended(out.masked_fill(alone[..., None], 0.0), joined)
