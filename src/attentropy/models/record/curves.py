"""How the entropy of each head depends on a factor on its scale, measured on a running model.

With x the logarithm of the factor and g = ds/dx, dH/dx = -sum p (log p + H) g. Where logits are
nothing but the scaled product, g is s and the sum is the varentropy, which attention gives with H.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from attentropy.core.results import Stats
from attentropy.kernels.tiled.logits import row_logits
from attentropy.models.record.accumulators import Owner
from attentropy.models.record.model_call import ModelCall
from attentropy.models.record.recorder import Recorder, real_queries_of
from attentropy.models.record.sampled import rows_to_sample
from attentropy.models.watch import Watch

ROWS = 8

Search = Callable[[str, "Curve"], Tensor | None]
"""Factors [H] to measure next, of a layer and its curve so far; None when there is enough."""


def no_search(layer: str, curve: "Curve") -> None:
    """No factor but 1."""


@dataclass(eq=False)
class Curve:
    """Sums over rows of a layer at F factors on the scale of each head; the first factor is 1.

    Attributes:
        factors: [H,F].
        entropy: sums of H, [H,F].
        fall: sums of -dH/dlog(factor), [H,F].
        spread: sums of the standard deviation of the logits, [H].
        log_visible: the sum of the logarithms of the numbers of visible keys.
        log_outcomes: the same, with the sink among them.
        rows: the number of rows.
    """

    factors: Tensor
    entropy: Tensor
    fall: Tensor
    spread: Tensor
    log_visible: float
    log_outcomes: float
    rows: int

    def mean(self) -> Tensor:
        """Entropy [H,F]."""
        return self.entropy / self.rows

    @property
    def keys(self) -> float:
        """The typical number of visible keys."""
        return math.exp(self.log_visible / self.rows)

    @property
    def most(self) -> float:
        """The most that the entropy can be."""
        return self.log_outcomes / self.rows

    def also(self, factor: Tensor, entropy: Tensor, fall: Tensor) -> "Curve":
        """The curve with one more point for each head; all arguments are [H]."""
        pairs = ((self.factors, factor), (self.entropy, entropy), (self.fall, fall))
        factors, entropies, falls = (torch.cat([x, y[:, None]], 1) for x, y in pairs)
        return replace(self, factors=factors, entropy=entropies, fall=falls)

    def plus(self, other: "Curve") -> "Curve":
        """The curve of the rows of both, which have the same factors."""
        names = ("entropy", "fall", "spread", "log_visible", "log_outcomes", "rows")
        return replace(self, **{name: getattr(self, name) + getattr(other, name) for name in names})


class CurveRecorder(Recorder):
    """Records curves instead of sums, on rows near the end, which see about the whole length.

    The first call of a layer decides where its curve is measured; later calls use the same factors.
    """

    def __init__(self, search: Search) -> None:
        super().__init__(every=1, keep="mean", sample=ROWS)
        self.search = search
        self.curves: dict[str, Curve] = {}

    def prepare(
        self, owner: Owner, asked: ModelCall, out: Tensor | None, stats: Stats
    ) -> Callable[[], None]:
        """Return a function that adds the rows of one call to the curve of its layer."""
        return partial(self.record, owner, asked, out, stats)

    @torch.no_grad()
    def record(self, owner: Owner, asked: ModelCall, out: Tensor | None, stats: Stats) -> None:
        """Add the rows of one call to the curve of its layer."""
        left = _left_out(asked, stats)
        if left is not None:
            self.missed[owner.name] = left
            return
        rows = _ScaledRows(asked, stats)
        known, curve = self.curves.get(owner.name), rows.start()
        if known is not None and known.rows:
            for factor in known.factors[:, 1:].unbind(1):
                curve = curve.also(factor, *rows.at(factor))
            self.curves[owner.name] = known.plus(curve)
            return
        while curve.rows and (wanted := self.search(owner.name, curve)) is not None:
            curve = curve.also(wanted, *rows.at(wanted))
        self.curves[owner.name] = curve


class _ScaledRows:
    """Rows of a call whose scale may be multiplied by a factor for each head."""

    def __init__(self, asked: ModelCall, stats: Stats) -> None:
        self.call, self.rows, self.stats = asked.call, _last_rows(asked), stats
        self.visible = stats.visible[:, :, self.rows]
        self.kept = self.visible >= 2
        real = real_queries_of(asked)
        if real is not None:
            self.kept &= real.expand(stats.visible.shape)[:, :, self.rows]
        self.logits = row_logits(self.call, self.rows)
        others = (self.call.bias, self.call.relative, self.call.slopes, self.call.softcap)
        self.plain = self.call.sink is None and all(x is None for x in others)
        self.whole = not asked.by_attend

    def start(self) -> Curve:
        """The curve at factor 1, from the entropy and varentropy that attention returns."""
        one = torch.ones(self.logits.shape[1], dtype=torch.float64, device=self.logits.device)
        entropy, spread = self.stats.entropy, self.stats.varentropy
        if self.plain and entropy is not None and spread is not None:
            first, fall = (self._sum(x[:, :, self.rows]) for x in (entropy, spread))
        else:
            first, fall = self.at(one)
        sink = int(self.call.sink is not None)
        logs = (self.visible.clamp(min=1) + more for more in (0, sink))
        visible, outcomes = (float(self._sum(x.double().log())[0]) for x in logs)
        count = int(self.kept[:, 0].sum())
        return Curve(
            factors=one[:, None],
            entropy=first[:, None],
            fall=fall[:, None],
            spread=self._sum(_spread(self.logits)),
            log_visible=visible,
            log_outcomes=outcomes,
            rows=count,
        )

    def at(self, factor: Tensor) -> tuple[Tensor, Tensor]:
        """Sums of H and of -dH/dlog(factor), multiplied as steer() does it.

        In calls of attend() this multiplies the scale, in those of a model the whole logit.
        """
        s, g = self._scaled(factor.to(self.logits.dtype).view(1, -1, 1))
        log_p = s.log_softmax(-1)
        p = log_p.exp()
        log_p.masked_fill_(p == 0, 0.0)
        entropy = -(p * log_p).sum(-1)
        answer = p.mul_(log_p.add_(entropy[..., None])).mul_(g.masked_fill(s.isneginf(), 0.0))
        return self._sum(entropy), self._sum(answer.sum(-1))

    def _scaled(self, factor: Tensor) -> tuple[Tensor, Tensor]:
        """Final logits s with a sink as one more, and g = ds/dlog(factor)."""
        if self.plain:
            s = self.logits * factor[..., None]
            return s, s
        if self.whole:
            s = self._with_sink(self.logits) * factor[..., None]
            return s, s
        call = self.call._replace(scale=self.call.scale * factor)
        alone = call._replace(bias=None, relative=None, slopes=None, softcap=None)
        s, g = row_logits(call, self.rows), row_logits(alone, self.rows)
        if call.softcap is not None:
            g = g * (1 - (g / call.softcap).tanh().square())
        return self._with_sink(s), g if call.sink is None else F.pad(g, (0, 1))

    def _with_sink(self, s: Tensor) -> Tensor:
        sink = self.call.sink
        if sink is None:
            return s
        return torch.cat([s, sink.to(s.dtype).view(1, -1, 1, 1).expand(*s.shape[:3], 1)], -1)

    def _sum(self, value: Tensor) -> Tensor:
        """The sum over batch and rows that count, [H]."""
        return value.double().masked_fill(~self.kept, 0.0).sum((0, 2))


def _last_rows(asked: ModelCall) -> Tensor:
    queries = asked.call.q.shape[2]
    last = max(1, queries // 8) if asked.mask.is_causal else queries
    return rows_to_sample(last, ROWS, device=asked.call.q.device) + (queries - last)


def _left_out(asked: ModelCall, stats: Stats) -> str | None:
    """Why a call has no curve."""
    if asked.is_cross:
        return "cross-attention"
    if stats.entropy is None:
        return f"{type(asked.call.weights).__name__} weights, which have no entropy"
    return None


def _spread(s: Tensor) -> Tensor:
    hidden = s.isneginf()
    count = (~hidden).sum(-1, keepdim=True).clamp(min=1)
    mean = s.masked_fill(hidden, 0.0).sum(-1, keepdim=True) / count
    return ((s - mean).masked_fill(hidden, 0.0).square().sum(-1) / count[..., 0]).sqrt()


class CurveWatch(Watch):
    """A watch that records curves."""

    def __init__(self, model: torch.nn.Module, search: Search) -> None:
        super().__init__(model)
        self.recorder: CurveRecorder = CurveRecorder(search)
        self.of_all_heads()

    @property
    def curves(self) -> dict[str, Curve]:
        """By the name of the layer."""
        return {name: curve for name, curve in self.recorder.curves.items() if curve.rows}

    def __enter__(self) -> "CurveWatch":
        self.start()
        return self

    def require(self) -> None:
        """Raise NothingRecorded unless there is a curve."""
        if not self.curves:
            super().require()
