"""dynamics: the entropy of every layer and head while a small language model learns.

The model trains under the library's Monitor; entropies, logits and losses of training are read off
its run store. Only the loss on unseen text is measured separately.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from attentropy.core.masks import causal
from attentropy.lab.harness.experiment import Experiment, FigureSpec, Row, TableSpec
from attentropy.lab.harness.results import RunResults
from attentropy.lab.subjects.sample_text import sample_tokens
from attentropy.lab.subjects.small_model import ByteModel, next_byte_loss, windows
from attentropy.nn.layers.multihead import MultiheadAttention
from attentropy.nn.losses import EntropyLoss
from attentropy.nn.positions.rotary import RotaryPositions
from attentropy.training.monitor import Monitor
from attentropy.training.runstore import RunStore, StoredRun, read

PLENTY, LITTLE, REWARDED = "plenty of text", "little text", "little text, entropy rewarded"


@dataclass(frozen=True)
class DynamicsConfig:
    """Bytes of the sample text: all but the last 8192 for training, or `little` of them.

    The monitor samples one step in `every`; `reward` is the weight of the entropy in the loss.
    """

    length: int = 96
    width: int = 64
    heads: int = 4
    layers: int = 3
    steps: int = 400
    every: int = 40
    batch: int = 16
    rate: float = 3e-3
    little: int = 4096
    reward: float = 0.1


def measure(config: DynamicsConfig, condition: str, seed: int) -> list[Row]:
    """Losses and the entropy of each head, every few steps.

    Args:
        config: sizes of the experiment.
        condition: one of conditions(config).
        seed: of the random numbers.
    """
    with TemporaryDirectory() as folder:
        path = Path(folder) / "run.db"
        unseen = _train(config, condition, seed, path)
        return read_off(read(path), unseen)


def _train(config: DynamicsConfig, condition: str, seed: int, path: Path) -> dict[int, float]:
    """Train under a monitor that writes to `path`; the loss on unseen text at each sample."""
    rng = torch.Generator().manual_seed(seed)
    text = sample_tokens()
    train, judged = text[:-8192], text[-8192:]
    train = train if condition == PLENTY else train[: config.little]
    model = _model(config)
    reward = EntropyLoss(config.reward) if condition == REWARDED else None
    optimiser = torch.optim.AdamW(model.parameters(), config.rate)
    unseen: dict[int, float] = {}
    with Monitor(model, every=config.every, loggers=[RunStore(path)], alarms=()) as monitor:
        for step in range(config.steps + 1):
            if step % config.every == 0:
                unseen[step] = _judged(model, judged, config.length)
            tokens = windows(train, config.length + 1, config.batch, rng)
            loss, stats = next_byte_loss(model, tokens)
            optimiser.zero_grad()
            (loss if reward is None else loss + reward(stats)).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            monitor.step(loss)
    return unseen


def _model(config: DynamicsConfig) -> ByteModel:
    return ByteModel(
        config.width,
        config.layers,
        lambda: MultiheadAttention(
            config.width, config.heads, mask=causal, positions=RotaryPositions()
        ),
    )


@torch.no_grad()
def _judged(model: ByteModel, text: Tensor, length: int) -> float:
    """The loss on 16 fixed windows, in evaluation mode, to which the monitor does not listen."""
    model.eval()
    tokens = windows(text, length + 1, 16, torch.Generator().manual_seed(12345))
    loss = next_byte_loss(model, tokens)[0].item()
    model.train()
    return loss


def read_off(run: StoredRun, unseen: dict[int, float]) -> list[Row]:
    """Rows of a stored run: a loss for each sample, and the numbers of every head.

    Args:
        run: what the monitor stored.
        unseen: loss on unseen text at each sampled step.
    """
    losses = dict(run.losses)
    rows: list[Row] = []
    for i, step in enumerate(run.steps):
        rows.append({"step": step, "kind": "loss", "train": losses[step], "unseen": unseen[step]})
        for layer, heads in enumerate(run.metrics["normalized_entropy"][i]):
            for head, entropy in enumerate(heads):
                top = run.metrics["max_logit"][i][layer][head]
                rows.append({"step": step, "kind": "head", "layer": layer, "head": head,
                             "entropy": entropy, "max_logit": top})  # fmt: skip
    return rows


def conclude(results: RunResults) -> list[str]:
    """Say whether the entropy falls from log n, how layers differ, what overfitting does.

    Args:
        results: rows of a run.
    """
    lines = [_course(results.where(condition=text), text) for text in results.values("condition")]
    lines.append(_layers(results))
    known = results.values("condition")
    if LITTLE in known:
        lines.append(_overfitting(results))
    if REWARDED in known:
        lines.append(_reward(results))
    return lines


def _course(rows: RunResults, text: str) -> str:
    heads, losses = rows.where(kind="head"), rows.where(kind="loss")
    last = max(heads.values("step"))
    layers = {la: heads.mean("entropy", step=last, layer=la) for la in heads.values("layer")}
    each = ", ".join(f"{h:.2f} in layer {la}" for la, h in layers.items())
    end = [r["entropy"] for r in heads.where(step=last)]
    return (
        f"{text}: the entropy starts at {heads.mean('entropy', step=0):.2f} log n. At the end it "
        f"is {each} (single heads {min(end):.2f} to {max(end):.2f}). The loss on unseen text "
        f"{_least(losses)}; on the text of training it ends at "
        f"{losses.mean('train', step=last):.2f}."
    )


def _layers(results: RunResults) -> str:
    """The documents: shallow layers high, deep ones low, and the first fall is the fast one."""
    heads = results.where(kind="head", condition=results.values("condition")[0])
    steps = sorted(heads.values("step"))
    mean = [heads.mean("entropy", step=step) for step in steps]
    early = mean[0] - mean[min(2, len(mean) - 1)]
    late = mean[len(mean) // 2] - mean[-1]
    known = [r for r in results.where(kind="head") if r["condition"] != REWARDED]
    runs = {(r["condition"], r["seed"]) for r in known}
    falling = sum(_falls(results.where(condition=c, seed=s, step=steps[-1])) for c, s in runs)
    return (
        "The documents say that the entropy starts at log n, falls fast, then swings about a value "
        "and perhaps falls further, and that deeper layers have less. Here it starts at "
        f"{mean[0]:.2f} log n, falls fast at first (by {early:.2f} log n in the first "
        f"{steps[min(2, len(steps) - 1)]} steps), then slowly (by {late:.2f} in the second half), "
        f"and does not swing; in {falling} of {len(runs)} runs (without a reward) every layer ends "
        "below the one before it."
    )


def _falls(rows: RunResults) -> bool:
    means = [rows.mean("entropy", layer=la) for la in sorted(rows.values("layer"))]
    return all(a > b for a, b in itertools.pairwise(means))


def _overfitting(results: RunResults) -> str:
    """What the entropy does after the loss on unseen text has turned, beside plenty of text."""
    rows = results.where(condition=LITTLE)
    steps, values = rows.where(kind="loss").curve("step", "unseen")
    turn, last = steps[min(range(len(steps)), key=lambda i: values[i].mean)], steps[-1]
    change = {}
    for text in (LITTLE, PLENTY):
        heads = results.where(condition=text, kind="head")
        change[text] = heads.mean("entropy", step=last) - heads.mean("entropy", step=turn)
    less = change[LITTLE] > change[PLENTY]
    verdict = "does not hold here" if less else "holds here"
    return (
        f"Overfitting: with little text the loss on unseen text turns at step {turn}. From there "
        f"to step {last} the entropy changes by {change[LITTLE]:+.2f} log n; with plenty of text, "
        f"where the model does not overfit, by {change[PLENTY]:+.2f}. So it falls "
        f"{'less' if less else 'more'} while the model memorises: the documents' statement that a "
        f"falling entropy is a sign of overfitting {verdict}."
    )


def _reward(results: RunResults) -> str:
    """Does a reward for entropy keep a model from overfitting, as the documents have it?"""
    turned = {}
    for text in (LITTLE, REWARDED):
        rows = results.where(condition=text, kind="loss")
        _, values = rows.curve("step", "unseen")
        turned[text] = min(v.mean for v in values), values[-1].mean
    (best, end), (best_paid, end_paid) = turned[LITTLE], turned[REWARDED]
    helps = best_paid < best - 0.02 or end_paid < end - 0.2
    return (
        "The documents say that a reward for entropy prevents overfitting. (Their term "
        "'+ lambda H' with lambda > 0 would punish entropy; here it is rewarded.) The least loss "
        f"on unseen text is {best_paid:.2f} with it and {best:.2f} without, the last "
        f"{end_paid:.2f} and {end:.2f}: it {'helps' if helps else 'does not help'} here."
    )


def _least(losses: RunResults) -> str:
    """The least loss on unseen text, and the last."""
    steps, values = losses.curve("step", "unseen")
    if not steps:
        return "not measured"
    best = min(range(len(steps)), key=lambda i: values[i].mean)
    least, last = values[best].mean, values[-1].mean
    rose = f", then rises to {last:.2f}" if last - least > 0.05 and math.isfinite(last) else ""
    return f"falls to {least:.2f} nats at step {steps[best]}{rose}"


def conditions(config: DynamicsConfig) -> Sequence[str]:
    """Amounts of text, and whether entropy is rewarded.

    Args:
        config: sizes of the experiment.
    """
    return (PLENTY, LITTLE, REWARDED)


EXPERIMENT = Experiment(
    name="dynamics",
    question="What does the entropy of layers and heads do while a model learns, and overfits?",
    full=DynamicsConfig(),
    quick=DynamicsConfig(length=48, width=32, heads=2, layers=2, steps=60, every=20, batch=8),
    conditions=conditions,
    measure=measure,
    tables=(
        TableSpec("Entropy / log n", "entropy", ("condition", "layer"), "step", {"kind": "head"}),
        TableSpec("Loss on unseen text, nats", "unseen", ("condition",), "step", {"kind": "loss"}),
        TableSpec("Loss on the batch of training, nats", "train", ("condition",), "step",
                  {"kind": "loss"}),
        TableSpec("Largest logit", "max_logit", ("condition", "layer"), "step", {"kind": "head"},
                  1),
    ),
    figures=(
        FigureSpec("entropy", "Entropy while learning, by layer", "step", "entropy", "layer",
                   panels="condition", where={"kind": "head"}, labels=("step", "H / log n")),
        FigureSpec("loss", "Loss on unseen text", "step", "unseen", "condition",
                   where={"kind": "loss"}, labels=("step", "nats per byte")),
    ),
    conclude=conclude,
)  # fmt: skip
