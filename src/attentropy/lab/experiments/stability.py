"""stability: a learning-rate sweep; do logits and entropy warn before the loss, and what helps?

Models are trained under the library's Monitor. Losses, heads and alarms are read off its run store
afterwards; the experiment measures nothing by itself.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from attentropy.attention.attend import attend
from attentropy.core import scores
from attentropy.core.masks import causal
from attentropy.core.results import Attended
from attentropy.lab.harness.experiment import Experiment, FigureSpec, Row, TableSpec
from attentropy.lab.harness.results import RunResults
from attentropy.lab.subjects.sample_text import sample_tokens
from attentropy.lab.subjects.small_model import ByteModel, next_byte_loss, windows
from attentropy.nn.guards import qk_clip_, sigma_reparam
from attentropy.nn.layers.multihead import MultiheadAttention
from attentropy.nn.layers.variants import AdditiveAttention, CosineAttention
from attentropy.nn.losses import EntropyLoss
from attentropy.training.alarms import Alert, EntropyCollapse, LogitGrowth, NearUniform, NotFinite
from attentropy.training.monitor import Monitor
from attentropy.training.runstore import RunStore, StoredRun, read

NONE, COLLAPSE, GROWTH = "none", "entropy collapse", "logit growth"
LEADS = {COLLAPSE: "lead_collapse", GROWTH: "lead_growth"}
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
class StabilityConfig:
    """Adam without clipping, its rate rising to `rates` over `warmup` steps.

    The monitor samples one step in `every`. A loss has diverged when it exceeds its least value by
    `rise` nats.
    """

    rates: tuple[float, ...] = (0.01, 0.03, 0.1, 0.3, 1.0)
    cures: tuple[str, ...] = CURES
    steps: int = 200
    length: int = 48
    batch: int = 8
    width: int = 32
    heads: int = 2
    layers: int = 2
    warmup: int = 100
    every: int = 2
    rise: float = 0.25


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
        """Attend to [B,N,width]; the result has the same shape.

        Args:
            x: features [B,N,width].
        """
        parts = self.inward(x).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        out, stats = attend(q, k, v, mask=causal, bias=scores.ALiBi(), softcap=20.0)
        return Attended(self.outward(out.transpose(1, 2).flatten(2)), stats)


def _model(config: StabilityConfig, cure: str) -> ByteModel:
    kinds: dict[str, type[MultiheadAttention]] = {
        "cosine": CosineAttention,
        "additive": AdditiveAttention,
    }
    options: dict[str, Any] = {"qk_norm": "rms"} if cure == "QK-norm" else {}

    def layer() -> nn.Module:
        if cure == "softcap":
            return Softcapped(config.width, config.heads)
        made = kinds.get(cure, MultiheadAttention)(
            config.width, config.heads, mask=causal, positions=scores.ALiBi(), **options
        )
        return sigma_reparam(made) if cure == "sigma_reparam" else made

    return ByteModel(config.width, config.layers, layer)


def _silent(alert: Alert, monitor: Any) -> None:
    """Alarms are read off the run store afterwards."""


ALARMS = (
    EntropyCollapse(action=_silent),
    LogitGrowth(action=_silent),
    NotFinite(action=_silent),
    NearUniform(action=_silent),
)  # the monitor's own, as it has them by default


def _train(config: StabilityConfig, cure: str, rate: float, seed: int, path: Path) -> None:
    """Train under a monitor, which writes losses, heads and rings into the run store `path`."""
    rng = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    text, model = sample_tokens(), _model(config, cure)
    optimiser = torch.optim.Adam(model.parameters(), rate)
    extra: Callable[..., Tensor] | None = EntropyLoss(0.1) if cure == "entropy loss" else None
    with Monitor(model, every=config.every, loggers=[RunStore(path)], alarms=ALARMS) as monitor:
        for step in range(config.steps):
            for group in optimiser.param_groups:
                group["lr"] = rate * min(1.0, (step + 1) / config.warmup)
            loss, stats = next_byte_loss(model, windows(text, config.length + 1, config.batch, rng))
            optimiser.zero_grad()
            (loss if extra is None else loss + extra(stats)).backward()
            optimiser.step()
            if cure == "qk_clip":
                for layer, one in zip(model.stack.attentions, stats, strict=True):
                    qk_clip_(layer, one, 30.0)
            monitor.step(loss)
            if not math.isfinite(loss.item()):
                break


def diverged(losses: Sequence[tuple[int, float]], rise: float) -> tuple[float, float]:
    """The step at which the smoothed loss exceeds its least value by `rise`, and its last value.

    Args:
        losses: pairs of step and loss.
        rise: in nats.
    """
    least = smooth = first = math.nan
    for step, loss in losses:
        if not math.isfinite(loss):
            return (step if math.isnan(first) else first), math.nan
        smooth = loss if math.isnan(smooth) else 0.8 * smooth + 0.2 * loss
        least = smooth if math.isnan(least) else min(least, smooth)
        if smooth > least + rise and math.isnan(first):
            first = step
    return first, smooth


def read_off(run: StoredRun, config: StabilityConfig, rate: float) -> Row:
    """Read off a stored run whether it diverged, when alarms rang, and how far heads went.

    Args:
        run: what the monitor stored.
        config: sizes of the experiment.
        rate: learning rate of the run.
    """
    when, loss = diverged(run.losses, config.rise)
    rang = {
        name: min((alert.step for alert in run.alerts if alert.name == name), default=math.nan)
        for name in (COLLAPSE, GROWTH)
    }
    alarm = min((step for step in rang.values() if not math.isnan(step)), default=math.nan)
    return {
        "rate": rate,
        "loss": loss,
        "diverged": float(not math.isnan(when)),
        "alarmed": float(not math.isnan(alarm)),
        "step_diverged": when,
        "step_alarm": alarm,
        "lead": when - alarm,
        "lead_collapse": when - rang[COLLAPSE],
        "lead_growth": when - rang[GROWTH],
        "max_logit": max(_numbers(run, "max_logit"), default=math.nan),
        "least_entropy": min(_numbers(run, "normalized_entropy"), default=math.nan),
    }


def _numbers(run: StoredRun, name: str) -> Iterator[float]:
    """A statistic of all heads and samples, where it is a number."""
    samples = run.metrics[name]
    return (x for layers in samples for heads in layers for x in heads if math.isfinite(x))


def _run(config: StabilityConfig, cure: str, rate: float, seed: int) -> Row:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "run.db"
        _train(config, cure, rate, seed, path)
        return read_off(read(path), config, rate)


def measure(config: StabilityConfig, condition: str, seed: int) -> list[Row]:
    """Train with one cure at every learning rate.

    Args:
        config: sizes of the experiment.
        condition: one of conditions(config).
        seed: of the random numbers.
    """
    return [_run(config, condition, rate, seed) for rate in config.rates]


def conclude(results: RunResults) -> list[str]:
    """Say whether an alarm comes first, which one, and which cure trains at which rate.

    Args:
        results: rows of a run.
    """
    lines = [_leads(list(results.where(condition=NONE)), "Without a cure")]
    cured = [row for row in results if row["condition"] != NONE]
    if cured:
        lines.append(_leads(cured, "With a cure"))
    lines += [_at_rate(results.where(rate=rate), rate) for rate in results.values("rate")]
    lines.append(_held(results))
    return lines


def _at_rate(rows: RunResults, rate: float) -> str:
    """The best cure at a rate, by the loss at the end."""
    if all(row["diverged"] for row in rows):
        return f"At a rate of {rate:g} every run diverges."
    level = {c: rows.mean("loss", condition=c) for c in rows.values("condition")}
    kept = {c: x for c, x in level.items() if math.isfinite(x)}
    best = min(kept, key=lambda c: kept[c])
    top = {c: rows.mean("max_logit", condition=c) for c in kept}
    return (
        f"At a rate of {rate:g}, {best} ends with the least loss: {kept[best]:.2f} nats, against "
        f"{level.get(NONE, math.nan):.2f} without a cure. The largest logit is {top[best]:.0f} "
        f"with it and {top.get(NONE, math.nan):.0f} without."
    )


def _leads(runs: list[Row], said: str) -> str:
    """How many runs diverge, and by how many steps the alarms of the monitor come before."""
    lost = [r for r in runs if r["diverged"]]
    leads = sorted(r["lead"] for r in lost if r["alarmed"])
    false = sum(1 for r in runs if r["alarmed"] and not r["diverged"])
    quiet = len(runs) - len(lost)
    if not lost:
        return f"{said} none of {len(runs)} runs diverges; an alarm rings in {false} of them."
    text = (
        f"{said} {len(lost)} of {len(runs)} runs diverge; in {sum(x > 0 for x in leads)} of them "
        f"an alarm of the monitor rings before that, in {len(lost) - len(leads)} none rings"
    )
    if leads:
        text += (
            f". The first alarm comes {leads[0]:.0f} to {leads[-1]:.0f} steps before the loss "
            f"diverges, median {median(leads):.0f}"
        )
        each = {name: _known(lost, key) for name, key in LEADS.items()}
        firsts = [f"{name} {median(x):.0f}" for name, x in each.items() if x]
        text += f" (of each alarm: {', '.join(firsts)}; a negative number comes after)"
    return f"{text}. An alarm also rings in {false} of the {quiet} runs that do not diverge."


def _known(runs: list[Row], key: str) -> list[float]:
    return [r[key] for r in runs if r[key] is not None and math.isfinite(r[key])]


def _held(results: RunResults) -> str:
    """The largest rate at which no seed of a cure diverges."""
    held = {}
    for cure in results.values("condition"):
        rows = results.where(condition=cure)
        safe = [r for r in rows.values("rate") if not rows.mean("diverged", rate=r)]
        with_cure = "without a cure" if cure == NONE else f"with {cure}"
        held[cure] = f"{max(safe):g} {with_cure}" if safe else f"none {with_cure}"
    return f"The largest rate at which no seed diverges: {', '.join(held.values())}."


def conditions(config: StabilityConfig) -> Sequence[str]:
    """Names of the cures.

    Args:
        config: sizes of the experiment.
    """
    return config.cures


EXPERIMENT = Experiment(
    name="stability",
    question="Do growing logits and falling entropy announce divergence, and which cure works?",
    full=StabilityConfig(),
    quick=StabilityConfig(
        rates=(0.01, 0.3), steps=60, warmup=40, cures=(NONE, "QK-norm", "softcap")
    ),
    conditions=conditions,
    measure=measure,
    tables=(
        TableSpec("Loss at the end, nats", "loss", ("condition",), "rate"),
        TableSpec("Share of runs that diverge", "diverged", ("condition",), "rate"),
        TableSpec("Lead of the first alarm over the divergence, steps", "lead", ("condition",),
                  "rate", digits=0),
        TableSpec("Lead of the alarm of logit growth, steps", "lead_growth", ("condition",), "rate",
                  digits=0),
        TableSpec("Lead of the alarm of entropy collapse, steps", "lead_collapse", ("condition",),
                  "rate", digits=0),
        TableSpec("Share of runs in which an alarm rings", "alarmed", ("condition",), "rate"),
        TableSpec("Largest logit", "max_logit", ("condition",), "rate", digits=1),
        TableSpec("Least entropy of a head / log n", "least_entropy", ("condition",), "rate"),
    ),
    figures=(
        FigureSpec("loss", "Loss after training at a learning rate (1 apart)", "rate", "loss",
                   "condition", labels=("learning rate", "nats per byte"), log="x",
                   where={"rate": (0.01, 0.03, 0.1, 0.3)}),
        FigureSpec("logits", "Largest logit in training", "rate", "max_logit", "condition",
                   labels=("learning rate", "largest logit"), log="xy"),
    ),
    conclude=conclude,
)  # fmt: skip
