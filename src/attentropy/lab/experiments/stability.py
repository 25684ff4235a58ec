"""stability: a learning-rate sweep; do logits and entropy warn before the loss, and what helps?"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attentropy import scores
from attentropy.attention import attend
from attentropy.lab.experiment import Experiment, Figure, Row, Table
from attentropy.lab.populations import sample
from attentropy.lab.rows import Results
from attentropy.lab.small_model import ByteModel, next_byte_loss, windows
from attentropy.masks import causal
from attentropy.nn.guards import qk_clip_, sigma_reparam
from attentropy.nn.losses import EntropyLoss
from attentropy.nn.multihead import MultiheadAttention
from attentropy.nn.positions import ALiBi
from attentropy.nn.variants import AdditiveAttention, CosineAttention
from attentropy.types import Attended, Stats

NONE = "none"
CURES = (
    NONE,
    "QK-norm",
    "cosine",
    "entropy loss",
    "qk_clip",
    "sigma_reparam",
    "softcap",
    "additive",
)


@dataclass(frozen=True)
class Config:
    """Adam without warm-up or clipping; an alarm rings at `alarm_logit` or `alarm_entropy`."""

    rates: tuple[float, ...] = (0.01, 0.03, 0.1, 0.3)
    cures: tuple[str, ...] = CURES
    steps: int = 120
    length: int = 48
    batch: int = 8
    width: int = 32
    heads: int = 2
    layers: int = 2
    alarm_logit: float = 50.0  # largest logit of any head
    alarm_entropy: float = 0.1  # smallest mean entropy of a head, in units of log n
    rise: float = 0.5  # nats above the least loss so far: the loss has diverged


class Softcapped(nn.Module):
    """Causal attention with logits 20 tanh(s/20) and ALiBi."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.inward, self.outward = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.heads = heads
        for weight in (*self.inward.weight.chunk(3), self.outward.weight):
            nn.init.xavier_uniform_(weight)  # as the layers it is compared with
        for bias in (self.inward.bias, self.outward.bias):
            nn.init.zeros_(bias)

    def forward(self, x: Tensor) -> Attended:
        """X [B,N,width]."""
        parts = self.inward(x).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        out, stats = attend(q, k, v, mask=causal, bias=scores.ALiBi(), softcap=20.0)
        return Attended(self.outward(out.transpose(1, 2).flatten(2)), stats)


def _model(config: Config, cure: str) -> ByteModel:
    kinds: dict[str, type[MultiheadAttention]] = {
        "cosine": CosineAttention,
        "additive": AdditiveAttention,
    }
    options: dict[str, Any] = {"qk_norm": "rms"} if cure == "QK-norm" else {}

    def layer() -> nn.Module:
        if cure == "softcap":
            return Softcapped(config.width, config.heads)
        made = kinds.get(cure, MultiheadAttention)(
            config.width, config.heads, mask=causal, positions=ALiBi(config.heads), **options
        )
        return sigma_reparam(made) if cure == "sigma_reparam" else made

    return ByteModel(config.width, config.layers, layer)


@dataclass
class Watched:
    """What a run has shown so far, and when."""

    config: Config
    least: float = math.inf
    smooth: float = math.nan
    alarm: float = math.nan
    diverged: float = math.nan
    top: float = 0.0
    low: float = 1.0

    def step(self, at: int, loss: float, stats: list[Stats]) -> None:
        """Take one step's loss and statistics in."""
        heads = [one.per_head() for one in stats]
        top = max(float(h.max_logit.detach().max()) for h in heads)  # type: ignore[union-attr]
        low = min(float(h.normalized_entropy.detach().min()) for h in heads)  # type: ignore[union-attr]
        self.top, self.low = max(self.top, top), min(self.low, low)
        ringing = not (top < self.config.alarm_logit and low > self.config.alarm_entropy)
        if ringing and math.isnan(self.alarm):
            self.alarm = at
        old = loss if math.isnan(self.smooth) else self.smooth
        self.smooth = 0.8 * old + 0.2 * loss
        self.least = min(self.least, self.smooth)
        if not self.smooth < self.least + self.config.rise and math.isnan(self.diverged):
            self.diverged = at


def _run(config: Config, cure: str, rate: float, seed: int) -> Row:
    rng = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    text, model = sample(), _model(config, cure)
    optimiser = torch.optim.Adam(model.parameters(), rate)
    extra: Callable[..., Tensor] | None = EntropyLoss(0.1) if cure == "entropy loss" else None
    seen = Watched(config)
    for step in range(config.steps):
        loss, stats = next_byte_loss(model, windows(text, config.length + 1, config.batch, rng))
        if not math.isfinite(loss.item()):
            seen.diverged = step if math.isnan(seen.diverged) else seen.diverged
            break
        seen.step(step, loss.item(), stats)
        whole = loss if extra is None else loss + extra(stats)
        optimiser.zero_grad()
        whole.backward()
        optimiser.step()
        if cure == "qk_clip":
            for layer, one in zip(model.stack.attentions, stats, strict=True):
                qk_clip_(layer, one, 30.0)
    return {
        "rate": rate,
        "loss": seen.smooth,
        "diverged": float(not math.isnan(seen.diverged)),
        "alarmed": float(not math.isnan(seen.alarm)),
        "step_diverged": seen.diverged,
        "lead": seen.diverged - seen.alarm,
        "max_logit": seen.top,
        "least_entropy": seen.low,
    }


def measure(config: Config, condition: str, seed: int) -> list[Row]:
    """One cure at every learning rate."""
    return [_run(config, condition, rate, seed) for rate in config.rates]


def conclude(results: Results) -> list[str]:
    """Does an alarm come first, and which cure trains at which rate."""
    lines = []
    runs = list(results.where(condition=NONE))
    both = [r for r in runs if r["diverged"] and r["alarmed"]]
    early = [r for r in both if r["lead"] > 0]
    late = sum(1 for r in runs if r["diverged"] and not r["alarmed"])
    false = sum(1 for r in runs if r["alarmed"] and not r["diverged"])
    if any(r["diverged"] for r in runs):
        mean = sum(r["lead"] for r in both) / len(both) if both else math.nan
        lines.append(
            f"Without a cure {len(both) + late} of {len(runs)} runs diverge; in {len(early)} the "
            f"alarm rings first (mean lead {mean:.0f} steps), in {late} it never rings; it rings "
            f"in {false} runs that do not diverge."
        )
    else:
        lines.append(
            f"Without a cure none of {len(runs)} runs diverges; the alarm rings in {false} of them."
        )
    for rate in results.values("rate"):
        level = {
            c: results.mean("loss", condition=c, rate=rate) for c in results.values("condition")
        }
        kept = {c: x for c, x in level.items() if math.isfinite(x)}
        best = min(kept, key=lambda c: kept[c])
        top = {c: results.mean("max_logit", condition=c, rate=rate) for c in kept}
        lines.append(
            f"Rate {rate:g}: best is {best} ({kept[best]:.2f} nats; none "
            f"{level.get(NONE, math.nan):.2f}); largest logit without a cure "
            f"{top.get(NONE, math.nan):.0f}, with {best} {top[best]:.0f}."
        )
    return lines


def conditions(config: Config) -> Sequence[str]:
    """Cures."""
    return config.cures


EXPERIMENT = Experiment(
    name="stability",
    question="Do growing logits and falling entropy announce divergence, and which cure holds?",
    full=Config(),
    quick=Config(rates=(0.01, 0.1), steps=30, cures=(NONE, "QK-norm", "softcap")),
    conditions=conditions,
    measure=measure,
    tables=(
        Table("Loss at the end, nats", "loss", ("condition",), "rate"),
        Table("Share of runs that diverge", "diverged", ("condition",), "rate"),
        Table("Lead of the alarm, steps", "lead", ("condition",), "rate", digits=0),
        Table("Largest logit", "max_logit", ("condition",), "rate", digits=1),
        Table("Least entropy of a head / log n", "least_entropy", ("condition",), "rate"),
    ),
    figures=(
        Figure("loss", "Loss after training at a learning rate", "rate", "loss", "condition",
               labels=("learning rate", "nats per byte"), log="x"),
        Figure("logits", "Largest logit in training", "rate", "max_logit", "condition",
               labels=("learning rate", "largest logit"), log="xy"),
    ),
    conclude=conclude,
)  # fmt: skip
