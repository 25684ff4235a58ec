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
from attentropy.core.masks import between, causal, documents, full
from attentropy.core.masks.extent import Extent
from attentropy.core.masks.mask import Mask
from attentropy.core.resolve import Options, resolve
from attentropy.core.results import Attended
from attentropy.core.scales import ScaleRule
from attentropy.core.scores import Dot, Score
from attentropy.core.states import RowState, merge, read, repeated, unread
from attentropy.core.visibility import Visibility
from attentropy.kernels.attended import attended
from attentropy.nn._checks import count

Part = Callable[..., RowState]


def segmented(
    q: Tensor, k: Tensor, v: Tensor, length: int, *, mask: Mask | None = None, **options: Any
) -> Attended:
    """Attention within segments of `length` keys: query i sees keys of its own segment only.

    It costs O(n * length).

    Args:
        q: queries [B,H,Q,D], aligned to the end of the keys.
        k: keys [B,Hk,K,D], K >= Q.
        v: values [B,Hk,K,Dv].
        length: of a segment; at least 1.
        mask: applies on top.
        options: the other options of attend().
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
        scale: as in attend(); a rule counts all keys that a query sees.
        kernel: as in attend().
    """

    def make(q: Tensor, k: Tensor, options: Options) -> tuple[Part, Tensor, _LevelPlan]:
        plan = _LevelPlan.of(q, k, window, levels, _only_causal(options))
        scaled = options._replace(scale=_scale_of_all(q, plan, options))
        return partial(_part, q, scaled, kernel), k, plan

    part, k, plan = changed(q, k, Options(mask=mask, score=score, scale=scale), make)

    def computed() -> Attended:
        out, stats = read(reduce(merge, _levels(part, k, v, plan)))
        return Attended(out.to(v.dtype), stats)

    return skipped("hierarchical()", computed)


def _levels(part: Part, k: Tensor, v: Tensor, plan: "_LevelPlan") -> Iterator[RowState]:
    """The states of what each level sees."""
    yield part(k, v, mask=plan.up_to(0))
    for level in range(1, plan.levels + 1):
        yield from _means(part, k, v, plan, level)


def _only_causal(options: Options) -> Mask | None:
    """The mask of the options; raises on options that hierarchical() does not take."""
    given = [n for n in ("weights", "bias", "softcap") if getattr(options, n) is not None]
    if given:
        raise UnsupportedError(f"hierarchical takes no {given[0]}, to which it is steered")
    mask = options.mask
    if mask is not None and mask is not causal and mask is not full:
        raise UnsupportedError(f"hierarchical takes mask=None or causal, not {mask}")
    return causal if mask is causal else None


def _scale_of_all(q: Tensor, plan: "_LevelPlan", options: Options) -> Any:
    """The scale; a rule is asked with the number of all keys that a query sees."""
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


class _LevelPlan(NamedTuple):
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
    ) -> "_LevelPlan":
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

    @property
    def extent(self) -> Extent:
        """One head of one batch entry."""
        return Extent(1, 1, self.queries, self.keys, self.device)

    @property
    def positions(self) -> Tensor:
        """Places of the queries among the keys, [1,1,Q]."""
        return self.extent.positions

    def start(self, level: int) -> Tensor:
        """The first key that levels up to this one show."""
        size = self.window << level
        return ((self.positions // size - 1) * size).clamp(min=0)

    def stop(self, level: int) -> Tensor:
        """One past the last key that levels up to this one show."""
        size = self.window << level
        return ((self.positions // size + 2) * size).clamp(max=self.keys)

    def up_to(self, level: int) -> Mask:
        """The keys that levels up to this one show."""
        last = self.positions + 1 if self.causal else self.stop(level)
        return between(self.start(level), last)

    def visible(self) -> Tensor:
        """Number of keys that each query sees in all, [1,1,Q]."""
        return Visibility.of_mask(self.up_to(self.levels), self.extent).visible


def _means(part: Part, k: Tensor, v: Tensor, plan: _LevelPlan, level: int) -> Iterator[RowState]:
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


def _tail(part: Part, k: Tensor, v: Tensor, plan: _LevelPlan, level: int) -> RowState:
    """The mean of the last keys, too few for a whole one."""
    size = 1 << level
    kept = plan.keys // size * size
    means = tuple(x[:, :, kept:].mean(2, keepdim=True) for x in (k, v))
    shows = (plan.stop(level) == plan.keys) & (plan.stop(level - 1) <= kept)
    one = part(*means, mask=between(torch.zeros_like(shows).long(), shows.long()))
    many = repeated(one, plan.keys - kept)
    return many._replace(argmax=torch.where(many.argmax < 0, many.argmax, kept))
