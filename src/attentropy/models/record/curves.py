"""How the entropy of each head answers to a factor on its scale, measured on a running model."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from attentropy.core.call import Call
from attentropy.core.results import Stats
from attentropy.kernels.tiled.logits import row_logits
from attentropy.models.record.accumulators import Owner
from attentropy.models.record.model_call import ModelCall
from attentropy.models.record.recorder import Recorder, real_queries_of
from attentropy.models.record.sampled import rows_to_sample
from attentropy.models.watch import Watch

FACTORS = tuple(2.0 ** (i / 4) for i in range(-4, 17))
ROWS = 8


@dataclass(eq=False)
class Curve:
    """Sums over rows: `entropy` [H,F] at each factor, `spread` [H], `visible`, `rows`."""

    entropy: Tensor
    spread: Tensor
    log_visible: float = 0.0
    rows: int = 0

    def mean(self) -> Tensor:
        """Entropy [H,F]."""
        return self.entropy / self.rows

    @property
    def keys(self) -> float:
        """The typical number of visible keys."""
        return math.exp(self.log_visible / self.rows)


class CurveRecorder(Recorder):
    """Records curves instead of sums, on rows near the end, which see about the whole length."""

    def __init__(self, factors: tuple[float, ...]) -> None:
        super().__init__(every=1, keep="mean", sample=ROWS)
        self.factors = factors
        self.curves: dict[str, Curve] = {}

    def prepare(
        self, owner: Owner, asked: ModelCall, out: Tensor | None, stats: Stats
    ) -> Callable[[], None]:
        """What adds the rows of one call to the curve of its layer."""
        return partial(self.record, owner, asked, out, stats)

    @torch.no_grad()
    def record(self, owner: Owner, asked: ModelCall, out: Tensor | None, stats: Stats) -> None:
        """Add the rows of one call to the curve of its layer."""
        left = _left_out(asked, stats)
        if left is not None:
            self.missed[owner.name] = left
            return
        call, rows = asked.call, _last_rows(asked)
        visible = stats.visible[:, :, rows]
        counted = real_queries_of(asked)
        kept = visible >= 2
        if counted is not None:
            kept = kept & counted.expand(stats.visible.shape)[:, :, rows]
        values = torch.stack([_entropy(call, rows, factor) for factor in self.factors], -1)
        spread = _spread(row_logits(call, rows))
        heads, factors = values.shape[1], values.shape[3]
        blank = Curve(values.new_zeros(heads, factors), spread.new_zeros(heads))
        curve = self.curves.setdefault(owner.name, blank)
        curve.entropy += values.masked_fill(~kept[..., None], 0.0).sum((0, 2))
        curve.spread += spread.masked_fill(~kept, 0.0).sum((0, 2))
        curve.log_visible += float(visible.clamp(min=1).log().masked_fill(~kept, 0.0)[:, 0].sum())
        curve.rows += int(kept[:, 0].sum())


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


def _entropy(call: Call, rows: Tensor, factor: float) -> Tensor:
    """Entropy [B,H,R] with the whole logit multiplied by `factor`."""
    s = row_logits(call, rows)
    if call.sink is not None:
        column = call.sink.to(s.dtype).view(1, -1, 1, 1).expand(*s.shape[:3], 1)
        s = torch.cat([s, column], -1)
    return torch.special.entr((s * factor).softmax(-1)).sum(-1)


def _spread(s: Tensor) -> Tensor:
    hidden = s.isneginf()
    count = (~hidden).sum(-1, keepdim=True).clamp(min=1)
    mean = s.masked_fill(hidden, 0.0).sum(-1, keepdim=True) / count
    return ((s - mean).masked_fill(hidden, 0.0).square().sum(-1) / count[..., 0]).sqrt()


class CurveWatch(Watch):
    """A watch that records curves."""

    def __init__(self, model: torch.nn.Module, factors: tuple[float, ...] = FACTORS) -> None:
        super().__init__(model)
        self.recorder: CurveRecorder = CurveRecorder(factors)

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
