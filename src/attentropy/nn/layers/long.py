"""Long sequences at a cost of O(n * window): segments, and a hierarchy of summaries.

Both are one softmax over what a query sees, with the statistics of that softmax. What was attended
to in parts is merged exactly, as row states (attentropy.core.states).
"""

from collections.abc import Callable, Iterator
from functools import partial, reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attentropy.attention.attend import attend, run
from attentropy.attention.hooks import changed, skipped
from attentropy.core.errors import ArgumentError, UnsupportedError
from attentropy.core.masks import Extent, Mask, Where, causal, documents, full
from attentropy.core.resolve import Options, resolve
from attentropy.core.results import Attended
from attentropy.core.scales import ScaleRule
from attentropy.core.scores import Dot, Score
from attentropy.core.states import RowState, merge, read, repeated, unread
from attentropy.kernels.attended import attended
from attentropy.nn._checks import count

Part = Callable[..., RowState]


def segmented(
    q: Tensor, k: Tensor, v: Tensor, length: int, *, mask: Mask | None = None, **options: Any
) -> Attended:
    """Attention within segments of `length` keys: query i sees keys of its own segment only.

    q [B,H,Q,D], k [B,Hk,K,D], v [B,Hk,K,Dv] with Q <= K, queries aligned to the end. A mask and the
    other options of attend() apply on top. Cost O(n * length).
    """
    count("segmented: length", length)
    ids = torch.arange(k.shape[2], device=k.device) // length
    own = documents(ids)
    return attend(q, k, v, mask=own if mask is None else own & mask, **options)


def hierarchical(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    window: int,
    levels: int | None = None,
    *,
    mask: Mask | None = None,
    score: Score | None = None,
    scale: ScaleRule | float | None = None,
    kernel: str = "auto",
) -> Attended:
    """Near keys one by one, far keys in means of 2, 4, 8, ..., in one softmax.

    With blocks of `window` keys, a query sees its own block and its neighbours key by key. Level
    l = 1 .. levels reaches as far as the own and neighbouring blocks of window * 2^l keys, by means
    of 2^l keys and values; each mean counts as 2^l keys with that score. What no level reaches is
    not seen; `levels=None` takes as many as see everything. Where the keys and the values inside
    each mean are equal, the result is that of full attention, statistics included.

    Statistics are those of single keys: `visible` counts them, the mass of a mean is shared among
    its keys, and `argmax` is the first key of the strongest one.

    Args:
        q: queries [B,H,Q,D], aligned to the end of the keys.
        k: keys [B,Hk,K,D], K >= Q.
        v: values [B,Hk,K,Dv].
        window: even. The cost is O(n * window) for each level.
        levels: 0 is local attention.
        mask: None or causal.
        score: as in attend().
        scale: as in attend(); a rule is asked with all keys that a query sees.
        kernel: as in attend().
    """
    q, k, options = changed(q, k, Options(mask=mask, score=score, scale=scale))
    plan = _Plan.of(q, k, window, levels, _only_causal(options))
    part = partial(_part, q, options._replace(scale=_scale_of_all(q, plan, options)), kernel)

    def computed() -> Attended:
        out, stats = read(reduce(merge, _levels(part, k, v, plan)))
        return Attended(out.to(v.dtype), stats)

    return skipped("hierarchical()", computed)


def _levels(part: Part, k: Tensor, v: Tensor, plan: "_Plan") -> Iterator[RowState]:
    """The states of what each level sees."""
    yield part(k, v, mask=plan.near())
    for level in range(1, plan.levels + 1):
        yield from _means(part, k, v, plan, level)


def _only_causal(options: Options) -> Mask | None:
    """The mask of options that have nothing else than hierarchical() takes."""
    given = [n for n in ("weights", "bias", "softcap") if getattr(options, n) is not None]
    if given:
        raise UnsupportedError(f"hierarchical takes no {given[0]}, to which it is steered")
    mask = options.mask
    if mask is not None and mask is not causal and mask is not full:
        raise UnsupportedError(f"hierarchical takes mask=None or causal, not {mask}")
    return causal if mask is causal else None


def _scale_of_all(q: Tensor, plan: "_Plan", options: Options) -> Any:
    """The scale, of which a rule is asked with all keys that a query sees."""
    score = Dot() if options.score is None else options.score
    given: Any = score.default_scale(q.shape[3]) if options.scale is None else options.scale
    if not callable(given):
        return given
    return given(q.shape[3], plan.visible().to(torch.promote_types(q.dtype, torch.float32)))


def _part(q: Tensor, options: Options, kernel: str, k: Tensor, v: Tensor, mask: Mask) -> RowState:
    call = resolve(q, k, v, options._replace(mask=mask))
    rows = run(call, kernel)
    return unread(attended(call, rows), log_l=rows.log_l)


def join(a: Attended, b: Attended) -> Attended:
    """Softmax attention over the union of two disjoint sets of keys; differentiable.

    Args:
        a: attention over some keys.
        b: attention of the same queries over other keys, whose argmax counts on from those of a.
    """
    out, stats = read(merge(unread(a), unread(b)))
    return Attended(out.to(a.out.dtype), stats)


class _Plan(NamedTuple):
    """Which keys each level shows to a query at position i of n."""

    queries: int
    keys: int
    window: int
    levels: int
    causal: bool
    device: torch.device

    @classmethod
    def of(
        cls, q: Tensor, k: Tensor, window: int, levels: int | None, mask: Mask | None
    ) -> "_Plan":
        if count("hierarchical: window", window, least=2) % 2:
            raise ArgumentError("hierarchical: window", "even", window)
        if q.shape[2] > k.shape[2]:
            rule = f"at most the number of keys {k.shape[2]}"
            raise ArgumentError("hierarchical: the number of queries", rule, q.shape[2])
        most = max(0, (max(k.shape[2], 1) - 1).bit_length())
        enough = next(i for i in range(most + 1) if window << i >= k.shape[2] or i == most)
        if levels is not None:
            count("hierarchical: levels", levels, least=0)
            enough = min(levels, enough)
        return cls(q.shape[2], k.shape[2], window, enough, mask is causal, q.device)

    def positions(self) -> Tensor:
        """Places of the queries among the keys, [1,1,Q]."""
        place = torch.arange(self.queries, device=self.device) + self.keys - self.queries
        return place.view(1, 1, -1)

    def start(self, level: int) -> Tensor:
        """The first key that levels up to this one show."""
        size = self.window << level
        return ((self.positions() // size - 1) * size).clamp(min=0)

    def stop(self, level: int) -> Tensor:
        """One past the last key that levels up to this one show."""
        size = self.window << level
        return ((self.positions() // size + 2) * size).clamp(max=self.keys)

    def visible(self) -> Tensor:
        """How many keys each query sees in all, [1,1,Q]."""
        last = self.positions() + 1 if self.causal else self.stop(self.levels)
        return last - self.start(self.levels)

    def near(self) -> Mask:
        """Level 0: keys one by one."""
        return between(self.start(0), self.positions() + 1 if self.causal else self.stop(0))


def between(lo: Tensor, hi: Tensor) -> Mask:
    """Keys lo <= j < hi, one pair of bounds for each query, [1,1,Q]."""

    def predicate(w: Where) -> Tensor:
        at_lo, at_hi = (x.flatten()[w.q] for x in (lo, hi))
        return (at_lo <= w.k) & (w.k < at_hi)

    def of(bound: Tensor) -> Any:
        return lambda extent: bound.to(extent.device)

    return Mask(predicate, "between", lo=of(lo), hi=of(hi), is_interval=True, check=_fits(lo))


def _fits(lo: Tensor) -> Any:
    def check(extent: Extent) -> None:
        if lo.shape[-1] != extent.queries:
            raise ArgumentError("between: bounds", f"[1,1,Q], Q = {extent.queries}", lo.shape)

    return check


def _means(part: Part, k: Tensor, v: Tensor, plan: _Plan, level: int) -> Iterator[RowState]:
    """What one level adds: whole means to the left and right, and a last one of fewer keys."""
    size = 1 << level
    whole = plan.keys // size
    kept = whole * size
    sides = [(plan.start(level), plan.start(level - 1))]
    if not plan.causal:
        sides.append((plan.stop(level - 1), plan.stop(level)))
    means = tuple(x[:, :, :kept].unflatten(2, (whole, size)).mean(3) for x in (k, v))
    for lo, hi in sides if whole else ():
        yield repeated(part(*means, mask=between(lo // size, hi // size)), size)
    if kept < plan.keys and not plan.causal:
        yield _tail(part, k, v, plan, level)


def _tail(part: Part, k: Tensor, v: Tensor, plan: _Plan, level: int) -> RowState:
    """The mean of the last keys, too few for a whole one."""
    size = 1 << level
    kept = plan.keys // size * size
    means = tuple(x[:, :, kept:].mean(2, keepdim=True) for x in (k, v))
    shows = (plan.stop(level) == plan.keys) & (plan.stop(level - 1) <= kept)
    one = part(*means, mask=between(torch.zeros_like(shows).long(), shows.long()))
    many = repeated(one, plan.keys - kept)
    return many._replace(argmax=torch.where(many.argmax < 0, many.argmax, kept))
