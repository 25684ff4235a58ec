"""bottleneck: which entropy is best for a task, and what the information bottleneck predicts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from attentropy.lab.harness.experiment import Experiment, FigureSpec, Row, TableSpec
from attentropy.lab.harness.results import RunResults

TRADES = (1.0, 4.0, 16.0)


@dataclass(frozen=True)
class BottleneckConfig:
    """One of `keys` keys matters; its score is higher by a signal, in units of the noise."""

    keys: int = 64
    classes: int = 8
    signals: tuple[float, ...] = (1.5, 3.0, 5.0)
    factors: tuple[float, ...] = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 4.0)
    rows: int = 4096


def measure(config: BottleneckConfig, condition: str, seed: int) -> list[Row]:
    """Entropy, loss and the bottleneck objective by the factor on the ideal scale.

    The output is the class distribution that the weights give; its loss is -log of the right class.
    With scores N(signal 1[j = J], 1) the weights of scale `signal` are the posterior of J.

    Args:
        config: sizes of the experiment.
        condition: one of conditions(config).
        seed: of the random numbers.
    """
    rng, signal = torch.Generator().manual_seed(seed), float(condition.removeprefix("signal "))
    s = torch.randn(config.rows, config.keys, generator=rng, dtype=torch.float64)
    s[:, 0] += signal
    kinds = torch.randint(config.classes, s.shape, generator=rng)
    rows: list[Row] = []
    for factor in config.factors:
        p = (factor * signal * s).softmax(-1)
        mass = torch.zeros(config.rows, config.classes, dtype=s.dtype).scatter_add_(1, kinds, p)
        loss = -(mass.gather(1, kinds[:, :1]) + 1e-12).log().mean().item()
        entropy = torch.special.entr(p).sum(-1).mean().item()
        gained = math.log(config.classes) - loss
        row = {"factor": factor, "entropy": entropy, "loss": loss, "gained": gained}
        row |= {f"objective {b:g}": entropy - b * gained for b in TRADES}
        rows.append(row)
    return rows


def conclude(results: RunResults) -> list[str]:
    """Say where the loss is least, and which entropy that is.

    Args:
        results: rows of a run.
    """
    lines = []
    for condition in results.values("condition"):
        chosen = results.where(condition=condition)
        best = _least(chosen, "loss")
        least = {b: _least(chosen, f"objective {b:g}") for b in TRADES}
        trades = ", ".join(f"{factor:g} times it for beta = {b:g}" for b, factor in least.items())
        entropy = chosen.over("entropy", factor=best)
        lines.append(
            f"{condition}: the loss is least at {best:g} times the ideal scale, where H is "
            f"{entropy.text(2)} nats. The bottleneck objective H - beta I(Z; Y) is least at "
            f"{trades}."
        )
    lines.append(
        "The best weights are the posterior, so the best entropy is the uncertainty that remains "
        "about which key matters. It falls as the signal grows and is not a constant of the task. "
        "With a small beta the bottleneck objective asks for less entropy than that, with a large "
        "beta for the same."
    )
    return lines


def _least(chosen: RunResults, metric: str) -> float:
    """The factor at which a metric is least."""
    factors: list[float] = sorted(chosen.values("factor"))
    return min(factors, key=lambda factor: chosen.mean(metric, factor=factor))


def conditions(config: BottleneckConfig) -> Sequence[str]:
    """Strengths of the signal.

    Args:
        config: sizes of the experiment.
    """
    return [f"signal {x:g}" for x in config.signals]


EXPERIMENT = Experiment(
    name="bottleneck",
    question="Which entropy of attention is best for a task, and does the bottleneck find it?",
    full=BottleneckConfig(),
    quick=BottleneckConfig(rows=512),
    conditions=conditions,
    measure=measure,
    tables=(
        TableSpec("Loss, nats, by the factor on the ideal scale", "loss", ("condition",), "factor"),
        TableSpec("Entropy, nats", "entropy", ("condition",), "factor"),
        TableSpec("H - 4 I(Z; Y)", "objective 4", ("condition",), "factor"),
    ),
    figures=(
        FigureSpec("loss", "Loss by the scale of the scores", "factor", "loss", "condition",
                   labels=("factor on the ideal scale", "loss, nats"), log="x"),
    ),
    conclude=conclude,
)  # fmt: skip
