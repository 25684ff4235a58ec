"""alarms: do the monitor's alarms ring when training diverges, before it does, and only then?

Each run trains a small byte model under a monitor with its alarms as they are by default. A healthy
run has a constant rate after a short warm-up. In a diverging one the rate grows after `calm` steps,
geometrically, to 200 times as much. In a steep one it rises in a line from the first step on, and
the model never learns well. Both are run again, with the same numbers, with an alarm of logit
growth that clips.

What counts as divergence was fixed beforehand. With L the loss smoothed over about `smooth` steps,
a run has diverged from the first step on after which L stays above its least value so far by `rise`
nats, to the end of the run, or is not finite.

Alarms were tuned on the seeds from 0 on, and judged on those from 1000 on. Both are run.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attentropy.lab.experiments.language import posed
from attentropy.lab.harness.experiment import Experiment, FigureSpec, Row, TableSpec
from attentropy.lab.harness.results import RunResults
from attentropy.lab.subjects.plain_models import KINDS, PlainModel
from attentropy.lab.subjects.sample_text import sample_tokens
from attentropy.lab.subjects.small_model import windows
from attentropy.training.alarms import (
    Alarm,
    Alert,
    EntropyCollapse,
    LogitGrowth,
    NearUniform,
    NotFinite,
    clip,
)
from attentropy.training.monitor import Monitor

HEALTHY, FAST = "healthy", "fast"
DIVERGING, CLIPPED = "diverging", "diverging, clipped"
STEEP, STEEP_CLIPPED = "steep", "steep, clipped"
TUNING, JUDGED = "tuning", "judged"
FIRST_SEED = {TUNING: 0, JUDGED: 1000}


@dataclass(frozen=True)
class AlarmsConfig:
    """Adam without weight decay or clipping of gradients.

    Each kind has `tuned` tuning seeds. As many judged seeds also have a fast run, at three times
    the rate of a healthy one, which is neither meant to diverge nor counted as healthy. The first
    `ramped` judged seeds have a steep run, to the rate `steep`.
    """

    kinds: tuple[str, ...] = tuple(KINDS)
    steps: int = 300
    every: int = 5
    length: int = 64
    batch: int = 8
    hidden: float = 0.15
    warmup: int = 20
    calm: int = 100
    rate: float = 1e-3
    fast: float = 3e-3
    wild: float = 0.2
    steep: float = 0.1
    cap: float = 30.0
    smooth: int = 10
    rise: float = 0.25
    tuned: int = 1
    ramped: int = 5


def rates(config: AlarmsConfig, regime: str) -> list[float]:
    """The learning rate of every step.

    Args:
        config: sizes of the experiment.
        regime: HEALTHY, FAST, DIVERGING, STEEP, or a clipped DIVERGING or STEEP.
    """
    steps = range(1, config.steps + 1)
    if regime in (STEEP, STEEP_CLIPPED):
        return [config.steep * step / config.steps for step in steps]
    top = config.fast if regime == FAST else config.rate
    warm = [top * min(1.0, step / config.warmup) for step in steps]
    if regime in (HEALTHY, FAST):
        return warm
    growth = (config.wild / config.rate) ** (1 / (config.steps - config.calm))
    ahead = (max(0, step - config.calm) for step in steps)
    return [rate * growth**power for rate, power in zip(warm, ahead, strict=True)]


def _silent(alert: Alert, monitor: Any) -> None:
    """Alerts are read off the monitor afterwards."""


def default_alarms(growth: LogitGrowth) -> tuple[Alarm, ...]:
    """The alarms of a monitor, which do nothing but ring.

    Args:
        growth: the alarm of logit growth.
    """
    others = (kind(action=_silent) for kind in (NotFinite, EntropyCollapse, NearUniform))
    return (growth, *others)


@dataclass(frozen=True)
class Course:
    """A training run.

    Attributes:
        losses: of every step.
        alerts: the alerts of the monitor.
        top: the largest logit of all samples.
    """

    losses: list[float]
    alerts: list[Alert]
    top: float


def train(config: AlarmsConfig, kind: str, regime: str, seed: int) -> Course:
    """Train a model under a monitor, to the end or until the loss is not finite.

    Args:
        config: sizes of the experiment.
        kind: of model.
        regime: HEALTHY, FAST, DIVERGING, STEEP, or a clipped DIVERGING or STEEP.
        seed: of weights and data.
    """
    torch.manual_seed(seed)
    rng = torch.Generator().manual_seed(seed)
    text, model = sample_tokens(), PlainModel(KINDS[kind])
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    growth = LogitGrowth(action=clip(config.cap) if regime in (CLIPPED, STEEP_CLIPPED) else _silent)
    losses, top = [], -math.inf
    alarms = default_alarms(growth)
    with Monitor(model, every=config.every, loggers=[], alarms=alarms) as monitor:
        for rate in rates(config, regime):
            tokens = windows(text, config.length + 1, config.batch, rng)
            loss = _stepped(config, model, optimizer, rate, tokens, rng)
            sampled = monitor.step(loss)
            losses.append(loss.item())
            if sampled is not None:
                top = max(top, sampled.get("attn/max_logit/max", top))
            if not math.isfinite(losses[-1]):
                break
    for change in monitor.changes:
        change.undo()
    return Course(losses, monitor.alerts, top)


def _stepped(
    config: AlarmsConfig,
    model: PlainModel,
    optimizer: torch.optim.Optimizer,
    rate: float,
    tokens: Tensor,
    rng: torch.Generator,
) -> Tensor:
    """The loss of a step, which is made."""
    task = "causal" if model.kind.causal else "masked"
    seen, asked = posed(task, tokens, config.hidden, rng)
    loss = F.cross_entropy(model(seen).flatten(0, 1), asked.flatten())
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def divergence(losses: Sequence[float], *, smooth: int, rise: float) -> tuple[float, float]:
    """The step from which on the smoothed loss stays too high, and its last value.

    Args:
        losses: of every step.
        smooth: number of steps over which the loss is smoothed.
        rise: nats above the least value so far.

    >>> divergence([3.0, 2.0, 2.0, 9.0, 9.0], smooth=1, rise=0.5)
    (3, 9.0)
    >>> divergence([3.0, 2.0, 9.0, 2.0, 2.0], smooth=1, rise=0.5)
    (nan, 2.0)
    """
    level = least = losses[0]
    since = math.nan
    for step, loss in enumerate(losses):
        level += (loss - level) / smooth
        least = min(least, level) if math.isfinite(level) else least
        high = not level <= least + rise
        since = (step if math.isnan(since) else since) if high else math.nan
    return since, level


def measure(config: AlarmsConfig, condition: str, seed: int) -> list[Row]:
    """Train one kind of model in every regime, on a judged seed, and maybe on a tuning seed.

    Args:
        config: sizes of the experiment.
        condition: one of conditions(config).
        seed: counted from 0.
    """
    runs = [(JUDGED, regime) for regime in (HEALTHY, DIVERGING, CLIPPED)]
    if seed < config.ramped:
        runs += [(JUDGED, regime) for regime in (STEEP, STEEP_CLIPPED)]
    if seed < config.tuned:
        runs += [(JUDGED, FAST), (TUNING, HEALTHY), (TUNING, DIVERGING)]
    return [_row(config, condition, regime, seeds, seed) for seeds, regime in runs]


def _row(config: AlarmsConfig, kind: str, regime: str, seeds: str, seed: int) -> Row:
    number = FIRST_SEED[seeds] + seed
    course = train(config, kind, regime, number)
    when, loss = divergence(course.losses, smooth=config.smooth, rise=config.rise)
    first = course.alerts[0] if course.alerts else None
    rang = math.nan if first is None else float(first.step)
    return {
        "seeds": seeds,
        "number": number,
        "regime": regime,
        "alarm": "" if first is None else first.name,
        "rang": float(first is not None),
        "diverged": float(not math.isnan(when)),
        "step_alarm": rang,
        "step_diverged": when,
        "lead": when - rang,
        "loss": loss,
        "max_logit": course.top,
        "alerts": float(len(course.alerts)),
        "repeats": float(most_told(course.alerts)),
    }


def most_told(alerts: Iterable[Alert]) -> int:
    """The largest number of alerts of one alarm that name the same head.

    Args:
        alerts: of one run.
    """
    told = Counter((alert.name, head) for alert in alerts for head in alert.heads)
    return max(told.values(), default=0)


def conclude(results: RunResults) -> list[str]:
    """Say how many runs ring, how early, and how many clipping saves, for both sets of seeds.

    Args:
        results: rows of a run.
    """
    lines = []
    for seeds in (JUDGED, TUNING):
        rows = results.where(seeds=seeds)
        if len(rows):
            lines.append(_healthy(rows, seeds))
            tried = [r for r in (DIVERGING, STEEP) if len(rows.where(regime=r))]
            lines += [_diverging(rows, seeds, regime) for regime in tried]
    for plain, clipped in ((DIVERGING, CLIPPED), (STEEP, STEEP_CLIPPED)):
        runs = results.where(seeds=JUDGED, regime=plain)
        if len(runs):
            lines.append(_clipped(runs, results.where(regime=clipped), plain))
    most = max(row["repeats"] for row in results)
    return [*lines, f"No head is reported more than {most:.0f} times by one alarm in one run."]


def _healthy(rows: RunResults, seeds: str) -> str:
    calm, fast = rows.where(regime=HEALTHY), rows.where(regime=FAST)
    text = f"{_named(rows, seeds)}: an alarm rings in {_sum(calm, 'rang')} of {len(calm)} healthy "
    text += f"runs, whose largest logit is {max(row['max_logit'] for row in calm):.0f}"
    if not len(fast):
        return f"{text}."
    beyond = sum(row["max_logit"] > LogitGrowth().limit for row in fast)
    return (
        f"{text}. Of {len(fast)} runs at three times the rate {_sum(fast, 'diverged')} diverge; an "
        f"alarm rings in {_sum(fast, 'rang')}, and logits pass the limit in {beyond}."
    )


def _diverging(rows: RunResults, seeds: str, regime: str) -> str:
    runs = rows.where(regime=regime)
    lost = [row for row in runs if row["diverged"]]
    leads = sorted(row["lead"] for row in lost if (row["lead"] or 0) > 0)
    rate = "rises" if regime == DIVERGING else "rises from the first step on"
    text = (
        f"{_named(runs, seeds)}: {len(lost)} of {len(runs)} runs whose rate {rate} diverge; in "
        f"{len(leads)} of them an alarm rings before that"
    )
    if leads:
        text += f", by {leads[0]:.0f} to {leads[-1]:.0f} steps (median {median(leads):.0f})"
    return f"{text}."


def _clipped(plain: RunResults, clipped: RunResults, regime: str) -> str:
    lost = {(row["condition"], row["number"]) for row in plain if row["diverged"]}
    again = [row for row in clipped if (row["condition"], row["number"]) in lost]
    saved = sum(not row["diverged"] for row in again)
    return (
        f"Clipping at the first alert of logit growth keeps {saved} of {len(again)} {regime} runs "
        f"from diverging. The mean loss at the end of {len(clipped)} runs is "
        f"{clipped.mean('loss'):.2f} with clipping and {plain.mean('loss'):.2f} without."
    )


def _named(rows: RunResults, seeds: str) -> str:
    numbers = [row["number"] for row in rows]
    kind, first, last = seeds.capitalize(), min(numbers), max(numbers)
    return f"{kind} seed {first}" if first == last else f"{kind} seeds {first} to {last}"


def _sum(rows: RunResults, name: str) -> int:
    return int(sum(row[name] for row in rows))


def conditions(config: AlarmsConfig) -> Sequence[str]:
    """Kinds of model.

    Args:
        config: sizes of the experiment.
    """
    return config.kinds


EXPERIMENT = Experiment(
    name="alarms",
    question="Do the monitor's alarms ring when training diverges, before it does, and only then?",
    full=AlarmsConfig(),
    quick=AlarmsConfig(kinds=("grouped decoder",), steps=80, calm=20, length=32),
    conditions=conditions,
    measure=measure,
    tables=(
        TableSpec("Share of runs in which an alarm rings", "rang", ("seeds", "condition"),
                  "regime"),
        TableSpec("Share of runs that diverge", "diverged", ("seeds", "condition"), "regime"),
        TableSpec("Step of the first alert", "step_alarm", ("seeds", "condition"), "regime",
                  digits=0),
        TableSpec("Step at which the loss diverges", "step_diverged", ("seeds", "condition"),
                  "regime", digits=0),
        TableSpec("Lead of the first alert over the loss, steps", "lead", ("seeds", "condition"),
                  "regime", digits=0),
        TableSpec("Loss at the end, nats", "loss", ("seeds", "condition"), "regime"),
        TableSpec("Largest logit", "max_logit", ("seeds", "condition"), "regime", digits=1),
        TableSpec("Alerts of a run", "alerts", ("seeds", "condition"), "regime", digits=1),
    ),
    figures=(
        FigureSpec("lead", "Lead of the first alert over the loss, in diverging runs", "number",
                   "lead", "condition", where={"regime": DIVERGING, "seeds": JUDGED},
                   labels=("seed", "steps")),
    ),
    conclude=conclude,
)  # fmt: skip
