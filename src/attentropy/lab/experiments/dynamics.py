"""dynamics: the entropy of every layer and head while a small language model learns."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from attentropy.lab.experiment import Experiment, Figure, Row, Table
from attentropy.lab.populations import sample
from attentropy.lab.rows import Results
from attentropy.lab.small_model import ByteModel, next_byte_loss, windows
from attentropy.masks import causal
from attentropy.nn.multihead import MultiheadAttention
from attentropy.nn.rotary import RotaryPositions
from attentropy.types import Stats

PLENTY, LITTLE = "plenty of text", "little text"


@dataclass(frozen=True)
class Config:
    """Bytes of the sample text: all but the last 8192 for training, or `little` of them."""

    length: int = 96
    width: int = 64
    heads: int = 4
    layers: int = 3
    steps: int = 400
    every: int = 40
    batch: int = 16
    rate: float = 3e-3
    little: int = 4096


def measure(config: Config, condition: str, seed: int) -> list[Row]:
    """Losses and the entropy of each head, every few steps."""
    rng = torch.Generator().manual_seed(seed)
    text = sample()
    train, judged = text[:-8192], text[-8192:]
    train = train[: config.little] if condition == LITTLE else train
    model = ByteModel(
        config.width,
        config.layers,
        lambda: MultiheadAttention(
            config.width, config.heads, mask=causal, positions=RotaryPositions()
        ),
    )
    optimiser = torch.optim.AdamW(model.parameters(), config.rate)
    rows = _looked(model, train, judged, config, step=0)
    for step in range(1, config.steps + 1):
        loss, _ = next_byte_loss(model, windows(train, config.length + 1, config.batch, rng))
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        if step % config.every == 0 or step == config.steps:
            rows += _looked(model, train, judged, config, step=step)
    return rows


@torch.no_grad()
def _looked(model: ByteModel, train: torch.Tensor, judged: torch.Tensor, config: Config,
            *, step: int) -> list[Row]:  # fmt: skip
    """Losses on both texts (one row), and normalised entropy by layer and head."""
    rng = torch.Generator().manual_seed(12345)
    seen, _ = next_byte_loss(model, windows(train, config.length + 1, 16, rng))
    unseen, stats = next_byte_loss(model, windows(judged, config.length + 1, 16, rng))
    rows: list[Row] = [
        {"step": step, "kind": "loss", "train": seen.item(), "unseen": unseen.item()}
    ]
    for layer, one in enumerate(stats):
        rows += _heads(one, layer=layer, step=step)
    return rows


def _heads(stats: Stats, *, layer: int, step: int) -> list[Row]:
    heads = stats.per_head()
    assert heads.normalized_entropy is not None
    assert heads.max_logit is not None
    rows = []
    for head, (entropy, top) in enumerate(
        zip(heads.normalized_entropy, heads.max_logit, strict=True)
    ):
        rows.append({"step": step, "kind": "head", "layer": layer, "head": head,
                     "entropy": entropy.item(), "max_logit": top.item()})  # fmt: skip
    return rows


def conclude(results: Results) -> list[str]:
    """Does the entropy fall from log n, do layers differ, what does overfitting do."""
    heads, losses = results.where(kind="head"), results.where(kind="loss")
    last = max(heads.values("step"))
    lines = []
    for text in results.values("condition"):
        chosen = heads.where(condition=text)
        start = chosen.mean("entropy", step=0)
        layers = {la: chosen.mean("entropy", step=last, layer=la) for la in chosen.values("layer")}
        each = ", ".join(f"layer {la} {h:.2f}" for la, h in layers.items())
        end = chosen.where(step=last)
        lowest, highest = (f(r["entropy"] for r in end) for f in (min, max))
        unseen = losses.where(condition=text)
        lines.append(
            f"{text}: entropy starts at {start:.2f} log n and ends at {each} (single heads "
            f"{lowest:.2f} to {highest:.2f}); loss on unseen text {_least(unseen)}, on its own "
            f"{unseen.mean('train', step=last):.2f}."
        )
    if LITTLE in results.values("condition"):
        a, b = (heads.mean("entropy", condition=c, step=last) for c in (PLENTY, LITTLE))
        word = "lower" if b < a - 0.02 else "higher" if b > a + 0.02 else "the same"
        lines.append(
            f"Overfitting: with little text the mean entropy ends at {b:.2f} log n, with plenty at "
            f"{a:.2f}: it is {word} where the model memorises, and a falling entropy alone is no "
            "sign of it."
        )
    return lines


def _least(losses: Results) -> str:
    """The least loss on unseen text, and the last."""
    steps, values = losses.curve("step", "unseen")
    if not steps:
        return "not measured"
    best = min(range(len(steps)), key=lambda i: values[i].mean)
    least, last = values[best].mean, values[-1].mean
    rose = f", then rises to {last:.2f}" if last - least > 0.05 and math.isfinite(last) else ""
    return f"falls to {least:.2f} nats at step {steps[best]}{rose}"


def conditions(config: Config) -> Sequence[str]:
    """How much text there is."""
    return (PLENTY, LITTLE)


EXPERIMENT = Experiment(
    name="dynamics",
    question="What does the entropy of layers and heads do while a model learns, and overfits?",
    full=Config(),
    quick=Config(length=48, width=32, heads=2, layers=2, steps=60, every=20, batch=8),
    conditions=conditions,
    measure=measure,
    tables=(
        Table("Entropy / log n", "entropy", ("condition", "layer"), "step", {"kind": "head"}),
        Table("Loss on unseen text, nats", "unseen", ("condition",), "step", {"kind": "loss"}),
        Table("Loss on the text of training, nats", "train", ("condition",), "step",
              {"kind": "loss"}),
        Table("Largest logit", "max_logit", ("condition", "layer"), "step", {"kind": "head"}, 1),
    ),
    figures=(
        Figure("entropy", "Entropy while learning, by layer", "step", "entropy", "layer",
               panels="condition", where={"kind": "head"}, labels=("step", "H / log n")),
        Figure("loss", "Loss on unseen text", "step", "unseen", "condition",
               where={"kind": "loss"}, labels=("step", "nats per byte")),
    ),
    conclude=conclude,
)  # fmt: skip
