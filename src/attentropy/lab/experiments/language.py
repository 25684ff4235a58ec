"""extrapolate/language: byte models trained at 64 (masked) or 128 (causal), tested up to 16x."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from attentropy.core.scales import LogLengthFrom, ScaleRule
from attentropy.lab.experiments.language_findings import conclude
from attentropy.lab.harness.experiment import Experiment, FigureSpec, Row, TableSpec
from attentropy.lab.subjects.byte_models import PLAIN, TASKS, byte_model, placed
from attentropy.lab.subjects.calibrated_scales import calibrated
from attentropy.lab.subjects.opened_layers import ClippedRotary
from attentropy.lab.subjects.sample_text import sample_tokens
from attentropy.lab.subjects.small_model import MASK, ByteModel, windows

HELD_OUT = 20480  # bytes at the end of the text, for the tests
JUDGED = 64  # last bytes of a causal window that are scored, the same at every length
OWN_RULES = (PLAIN, "KeyNorm", "QK-norm")  # of these, the scale may change in the test
TRAINED = (
    ("masked GAU RoPE", PLAIN),
    ("causal GAU RoPE", PLAIN),
    ("masked GAU 64 RoPE 100", PLAIN),
    ("masked GAU RoPE 100", PLAIN),
    ("causal RoPE", PLAIN),
    ("causal RoPE", "log n"),
    ("causal GAU 64 RoPE 100", PLAIN),
    ("causal GAU 64 RoPE 100", "log n"),
    ("masked RoPE", PLAIN),
    ("causal ALiBi", PLAIN),
    ("causal no positions", PLAIN),
    ("masked ALiBi", PLAIN),
    ("masked no positions", PLAIN),
    ("causal RoPE", "mixed 1"),
    ("causal RoPE", "log n/d"),
    ("causal RoPE", "QK-norm"),
    ("causal RoPE", "KeyNorm"),
    ("masked GAU 64 RoPE 100", "mixed 1"),
)  # masked rows all see one n, where log n is 1/sqrt d in training: it is not trained twice
DRAWN = (
    PLAIN,
    *(
        f"{PLAIN}, {how}"
        for how in ("log n at test", "calibrated", "NTK", "clipped, log n at test")
    ),
)


@dataclass(frozen=True)
class LanguageConfig:
    """Tests are at `times` the trained length. Pairs of TRAINED are run if both are listed."""

    width: int = 64
    heads: int = 4
    layers: int = 2
    steps: int = 500
    longer: int = 1500  # steps of the gated unit as it was published, GAU RoPE
    tokens: int = 1024  # bytes in a batch
    rate: float = 3e-3
    hidden: float = 0.15
    times: tuple[int, ...] = (1, 2, 4, 8, 16)
    tested: int = 8192  # bytes read in the test of a length, masked
    windows: int = 16  # texts in the test of a length, causal
    target: float = 2.6  # nats, for the steps that training needs
    first: int = 200  # the seed of seed 0: smaller ones were used to choose the models
    models: tuple[str, ...] = tuple(dict.fromkeys(model for model, _ in TRAINED))
    rules: tuple[str, ...] = tuple(dict.fromkeys(rule for _, rule in TRAINED))


def conditions(config: LanguageConfig) -> Sequence[str]:
    """Names of model and rule of training.

    Args:
        config: sizes of the experiment.
    """
    return [f"{m}, {r}" for m, r in TRAINED if m in config.models and r in config.rules]


def _named(condition: str) -> tuple[str, str, str]:
    """Task, kind of model and rule."""
    named, rule = condition.split(", ")
    task, _, kind = named.partition(" ")
    return task, kind, rule


def posed(task: str, tokens: Tensor, hidden: float, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """What the model sees, and the bytes asked for (-100 where nothing is asked).

    Args:
        task: "causal" or "masked".
        tokens: bytes [B,N+1].
        hidden: share of the bytes to hide in the masked task.
        rng: source of random numbers.
    """
    if task == "causal":
        return tokens[:, :-1], tokens[:, 1:]
    tokens = tokens[:, :-1]
    hide = torch.rand(tokens.shape, generator=rng) < hidden
    return tokens.masked_fill(hide, MASK), tokens.masked_fill(~hide, -100)


def trained(
    config: LanguageConfig, model: ByteModel, task: str, text: Tensor, rng: torch.Generator
) -> float:
    """Train a model; return the first step at which the smoothed loss is below the target.

    Args:
        config: sizes of the experiment.
        model: what to train.
        task: "causal" or "masked".
        text: to learn from.
        rng: source of random numbers.
    """
    n = TASKS[task]
    optimiser = torch.optim.AdamW(model.parameters(), config.rate, fused=True)
    plan = torch.optim.lr_scheduler.OneCycleLR(optimiser, config.rate, config.steps, pct_start=0.1)
    smooth, reached = math.log(256), math.nan
    for step in range(config.steps):
        tokens = windows(text, n + 1, config.tokens // n, rng)
        seen, asked = posed(task, tokens, config.hidden, rng)
        loss = F.cross_entropy(model(seen)[0].flatten(0, 1), asked.flatten())
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        plan.step()
        smooth = 0.9 * smooth + 0.1 * loss.item()
        if smooth < config.target and math.isnan(reached):
            reached = step
    return reached


class Tested(NamedTuple):
    """How a trained model is changed for a test; None leaves the scales of training."""

    name: str
    scales: Sequence[ScaleRule] | None = None
    stretched: bool = False
    clipped: bool = False


def measure(config: LanguageConfig, condition: str, seed: int) -> list[Row]:
    """Train one model, test it at every length as trained and under rules of the test.

    Args:
        config: sizes of the experiment.
        condition: one of conditions(config).
        seed: of the random numbers.
    """
    task, kind, rule = _named(condition)
    torch.manual_seed(config.first + seed)
    rng = torch.Generator().manual_seed(config.first + seed)
    text = sample_tokens()
    sizes = {"width": config.width, "heads": config.heads, "layers": config.layers}
    model = byte_model(task, kind, rule, **sizes)
    steps = config.longer if kind == "GAU RoPE" else config.steps
    reached = trained(replace(config, steps=steps), model, task, text[:-HELD_OUT], rng)
    about = {"task": task, "model": kind}
    rows: list[Row] = [{**about, "rule": rule, "kind": "training", "steps_to_target": reached}]
    with torch.no_grad():
        ways = _ways(config, model.eval(), condition, text[:-HELD_OUT], rng)
        for times in config.times:
            for way in ways:
                with _changed(model, way, kind, config.heads, TASKS[task], times):
                    found = judge(config, model, task, text[-HELD_OUT:], TASKS[task] * times)
                rows.append({**about, "rule": way.name, "n": TASKS[task] * times, **found})
    return rows


def _ways(
    config: LanguageConfig, model: ByteModel, condition: str, text: Tensor, rng: torch.Generator
) -> list[Tested]:
    """The model as trained, and with scales of the test if it was trained with 1/sqrt d."""
    task, kind, rule = _named(condition)
    found = [Tested(rule)]
    if rule in OWN_RULES:
        n0, blocks = TASKS[task], len(model.stack.attentions)
        whole = windows(text, n0 * max(config.times) + 1, 4, rng)
        tokens, _ = posed(task, whole, config.hidden, rng)
        log = [LogLengthFrom(n0)] * blocks
        plan = calibrated(model, tokens, [n0 * times for times in config.times])
        found += [
            Tested(f"{rule}, log n at test", log),
            Tested(f"{rule}, calibrated", plan),
        ]
        if "RoPE" in kind and rule == PLAIN:
            found += [
                Tested(f"{rule}, NTK", stretched=True),
                Tested(f"{rule}, NTK, log n at test", log, stretched=True),
                Tested(f"{rule}, clipped", clipped=True),
                Tested(f"{rule}, clipped, log n at test", log, clipped=True),
            ]
    elif "RoPE" in kind:
        found.append(Tested(f"{rule}, NTK", stretched=True))
    return found


@contextmanager
def _changed(
    model: ByteModel, way: Tested, kind: str, heads: int, n0: int, times: int
) -> Iterator[None]:
    """Change the model inside the block; afterwards it is as before."""
    blocks: list[Any] = list(model.stack.blocks)
    before = [(b.attention, b.attention.scale, b.attention.positions) for b in blocks]
    for i, block in enumerate(blocks):
        layer = block.attention
        if way.scales is not None:
            layer.scale = way.scales[i]
        if way.stretched:
            layer.positions = placed(kind, heads, stretch=times)
        if way.clipped:
            block.attention = ClippedRotary(layer, n0 - 1)
    try:
        yield
    finally:
        for block, (layer, scale, positions) in zip(blocks, before, strict=True):
            block.attention, layer.scale, layer.positions = layer, scale, positions


def judge(config: LanguageConfig, model: ByteModel, task: str, text: Tensor, n: int) -> Row:
    """Accuracy, perplexity and entropy on the last bytes (causal) or the hidden ones (masked).

    Args:
        config: sizes of the experiment.
        model: a trained model.
        task: "causal" or "masked".
        text: held out of training.
        n: bytes that the model reads.
    """
    longest = max(config.times) * TASKS[task]
    count = config.windows if task == "causal" else max(2, config.tested // n)
    ends = torch.linspace(longest + 1, len(text), count).long()
    tokens = text[ends[:, None] - torch.arange(n + 1, 0, -1)]
    seen, asked = posed(task, tokens, config.hidden, torch.Generator().manual_seed(7))
    rows = slice(-JUDGED, None) if task == "causal" else slice(None)
    logits, entropy = [], []
    for part in seen.split(max(1, 8192 // n)):
        out, stats = model(part)
        logits.append(out[:, rows])
        entropy.append(torch.stack([s.entropy[..., rows].mean((1, 2)) for s in stats]).mean(0))
    whole, asked = torch.cat(logits), asked[:, rows]
    wanted = asked != -100
    loss = F.cross_entropy(whole[wanted], asked[wanted]).item()
    right = (whole.argmax(-1)[wanted] == asked[wanted]).float().mean().item()
    return {
        "accuracy": 100 * right,
        "perplexity": math.exp(min(loss, 30.0)),
        "loss": loss,
        "entropy": torch.cat(entropy).mean().item(),
    }


EXPERIMENT = Experiment(
    name="extrapolate/language",
    question="Byte language models beyond their trained length: when does log n help?",
    full=LanguageConfig(),
    quick=LanguageConfig(
        steps=200, times=(1, 4), tested=4096, windows=8,
        models=("masked GAU 64 RoPE 100", "causal RoPE"), rules=(PLAIN,),
    ),
    conditions=conditions,
    measure=measure,
    tables=(
        TableSpec("Accuracy, %, masked", "accuracy", ("model", "rule"), "n", {"task": "masked"}, 1),
        TableSpec("Accuracy, %, causal", "accuracy", ("model", "rule"), "n", {"task": "causal"}, 1),
        TableSpec("Perplexity, masked", "perplexity", ("model", "rule"), "n", {"task": "masked"}),
        TableSpec("Perplexity, causal", "perplexity", ("model", "rule"), "n", {"task": "causal"}),
        TableSpec("Entropy, nats, masked", "entropy", ("model", "rule"), "n", {"task": "masked"}),
        TableSpec("Entropy, nats, causal", "entropy", ("model", "rule"), "n", {"task": "causal"}),
        TableSpec("Steps to the target loss", "steps_to_target", ("model", "rule"), "task",
                  {"kind": "training"}, 0),
    ),
    figures=(
        FigureSpec("masked", "Masked bytes, trained at 64", "n", "accuracy", "rule", panels="model",
                   where={"task": "masked", "rule": DRAWN}, log="x",
                   labels=("bytes", "accuracy, %")),
        FigureSpec("causal", "Next byte, trained at 128", "n", "loss", "rule", panels="model",
                   where={"task": "causal", "rule": DRAWN}, log="x",
                   labels=("bytes", "loss, nats")),
    ),
    conclude=conclude,
)  # fmt: skip
