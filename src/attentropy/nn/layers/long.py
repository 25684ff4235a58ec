"""Long sequences at a cost of O(n * window): segments, and a hierarchy of summaries.

Both are one softmax over what a query sees, with the statistics of that softmax. Parts that were
attended to apart are joined exactly, by their log-sum-exp: with shares w_i = e^(lse_i - lse),

    out = sum w_i out_i,  H = sum w_i (H_i - log w_i),  sum p^2 = sum w_i^2 C_i.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial, reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attentropy.attention.attend import attend, compute, steered, unseen
from attentropy.core.errors import ArgumentError, UnsupportedError
from attentropy.core.masks import Extent, Mask, Where, causal, documents, full
from attentropy.core.resolve import Options
from attentropy.core.results import Attended, Stats
from attentropy.core.scales import ScaleRule
from attentropy.core.scores import Dot, Score
from attentropy.nn._checks import count

Run = Callable[..., Attended]


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
    q, k, options = steered(q, k, Options(mask=mask, score=score, scale=scale))
    plan = _Plan.of(q, k, window, levels, _only_causal(options))
    run = partial(_part, q, options._replace(scale=_scale_of_all(q, plan, options)), kernel)
    return unseen("hierarchical()", lambda: reduce(join, _levels(run, k, v, plan)))


def _levels(run: Run, k: Tensor, v: Tensor, plan: "_Plan") -> Iterator[Attended]:
    """What each level sees."""
    yield run(k, v, mask=plan.near())
    for level in range(1, plan.levels + 1):
        yield from _means(run, k, v, plan, level)


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


def _part(q: Tensor, options: Options, kernel: str, k: Tensor, v: Tensor, mask: Mask) -> Attended:
    return compute(q, k, v, options._replace(mask=mask), kernel)


def join(a: Attended, b: Attended) -> Attended:
    """Attention over the union of two disjoint sets of keys; differentiable."""
    one, two = a.stats, b.stats
    assert one.lse is not None and two.lse is not None  # noqa: PT018
    assert one.entropy is not None and two.entropy is not None  # noqa: PT018
    lse, (p, r) = _shares(one.lse, two.lse)
    assert one.max_logit is not None and two.max_logit is not None  # noqa: PT018
    assert one.argmax is not None and two.argmax is not None  # noqa: PT018
    first = (one.max_logit > two.max_logit) | (two.argmax < 0)
    first = first | ((one.max_logit == two.max_logit) & (one.argmax < two.argmax))
    first = first & (one.argmax >= 0)
    stats = Stats(
        entropy=p * one.entropy + r * two.entropy + _surprise(p) + _surprise(r),
        lse=lse,
        max_logit=torch.maximum(one.max_logit, two.max_logit),
        argmax=torch.where(first, one.argmax, two.argmax),
        collision=p.square() * one.collision + r.square() * two.collision,
        visible=one.visible + two.visible,
    )
    out = p[..., None] * a.out.to(p.dtype) + r[..., None] * b.out.to(p.dtype)
    return Attended(out.to(a.out.dtype), stats)


def _shares(a: Tensor, b: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """The joint log-sum-exp and the share of each; blind parts have share 0."""
    no_a, no_b = a.isneginf(), b.isneginf()
    x, y = a.masked_fill(no_a, 0.0), b.masked_fill(no_b, 0.0)
    gap = x - y
    p = gap.sigmoid().masked_fill(no_a, 0.0).masked_fill(no_b & ~no_a, 1.0)
    r = (-gap).sigmoid().masked_fill(no_b, 0.0).masked_fill(no_a & ~no_b, 1.0)
    both = torch.where(no_a, y, torch.where(no_b, x, torch.logaddexp(x, y)))
    return both.masked_fill(no_a & no_b, -torch.inf), (p, r)


def _surprise(p: Tensor) -> Tensor:
    """-p log p, with a gradient of 0 at p = 0."""
    return -(p * p.masked_fill(p == 0, 1.0).log())


def _repeated(attended: Attended, times: int) -> Attended:
    """The same keys, each of them `times` times."""
    out, s = attended
    assert s.lse is not None and s.entropy is not None  # noqa: PT018
    assert s.argmax is not None
    more = (s.visible > 0).to(s.lse.dtype) * math.log(times)
    stats = replace(
        s,
        entropy=s.entropy + more,
        lse=s.lse + more,
        collision=s.collision / times,
        visible=s.visible * times,
        argmax=torch.where(s.argmax >= 0, s.argmax * times, -1),
    )
    return Attended(out, stats)


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


def _means(run: Run, k: Tensor, v: Tensor, plan: _Plan, level: int) -> list[Attended]:
    """What one level adds: whole means to the left and right, and a last one of fewer keys."""
    size = 1 << level
    whole = plan.keys // size
    kept = whole * size
    sides = [(plan.start(level), plan.start(level - 1))]
    if not plan.causal:
        sides.append((plan.stop(level - 1), plan.stop(level)))
    means = tuple(x[:, :, :kept].unflatten(2, (whole, size)).mean(3) for x in (k, v))
    parts = [
        _repeated(run(*means, mask=between(lo // size, hi // size)), size)
        for lo, hi in sides
        if whole
    ]
    if kept < plan.keys and not plan.causal:
        parts.append(_tail(run, k, v, plan, level))
    return parts


def _tail(run: Run, k: Tensor, v: Tensor, plan: _Plan, level: int) -> Attended:
    """The mean of the last keys, too few for a whole one."""
    size = 1 << level
    kept = plan.keys // size * size
    means = tuple(x[:, :, kept:].mean(2, keepdim=True) for x in (k, v))
    shows = (plan.stop(level) == plan.keys) & (plan.stop(level - 1) <= kept)
    one = run(*means, mask=between(torch.zeros_like(shows).long(), shows.long()))
    many = _repeated(one, plan.keys - kept)
    assert many.stats.argmax is not None
    at = torch.where(many.stats.argmax >= 0, kept, -1)
    return Attended(many.out, replace(many.stats, argmax=at))
