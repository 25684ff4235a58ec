"""ablation: byte models trained on texts of varying length, with every scale of the documents."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from attentropy.lab.experiments.language import HELD_OUT, LanguageConfig, judge
from attentropy.lab.harness.experiment import Experiment, FigureSpec, Row, TableSpec
from attentropy.lab.harness.results import RunResults
from attentropy.lab.subjects.byte_models import PLAIN, byte_model
from attentropy.lab.subjects.sample_text import sample_tokens
from attentropy.lab.subjects.small_model import ByteModel, next_byte_loss, windows

RULES = (PLAIN, "log n/d", "log n", *(f"mixed {beta:g}" for beta in (0.1, 0.3, 1.0, 3.0)))


@dataclass(frozen=True)
class AblationConfig:
    """Lengths of training are drawn evenly in the logarithm between `shortest` and `longest`."""

    shortest: int = 16
    longest: int = 128
    tested: tuple[int, ...] = (64, 128, 256, 512)
    steps: int = 400
    tokens: int = 1024
    width: int = 64
    heads: int = 4
    layers: int = 2
    rate: float = 3e-3
    target: float = 2.6
    windows: int = 16
    rules: tuple[str, ...] = RULES


def measure(config: AblationConfig, condition: str, seed: int) -> list[Row]:
    """Train with one rule; loss and entropy at every length of the test, and steps to the target.

    Args:
        config: sizes of the experiment.
        condition: one of conditions(config).
        seed: of the random numbers.
    """
    torch.manual_seed(seed)
    rng, text = torch.Generator().manual_seed(seed), sample_tokens()
    sizes = {"width": config.width, "heads": config.heads, "layers": config.layers}
    model = byte_model("causal", "RoPE", condition, **sizes)
    optimiser = torch.optim.AdamW(model.parameters(), config.rate, fused=True)
    plan = torch.optim.lr_scheduler.OneCycleLR(optimiser, config.rate, config.steps, pct_start=0.1)
    smooth, reached = math.log(256), math.nan
    for step in range(config.steps):
        n = _length(config, rng)
        tokens = windows(text[:-HELD_OUT], n + 1, max(1, config.tokens // n), rng)
        loss, _ = next_byte_loss(model, tokens)
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        plan.step()
        smooth = 0.9 * smooth + 0.1 * loss.item()
        if smooth < config.target and math.isnan(reached):
            reached = step
    return [{"kind": "training", "steps to target": reached}, *_tested(config, model, text)]


def _length(config: AblationConfig, rng: torch.Generator) -> int:
    """A length of training."""
    share = float(torch.rand((), generator=rng))
    return round(config.shortest * (config.longest / config.shortest) ** share)


def _tested(config: AblationConfig, model: ByteModel, text: torch.Tensor) -> list[Row]:
    common = LanguageConfig(times=(max(config.tested) // 128,), windows=config.windows)
    with torch.no_grad():
        found = {
            n: judge(common, model.eval(), "causal", text[-HELD_OUT:], n) for n in config.tested
        }
    spread = torch.tensor([row["entropy"] / math.log(n) for n, row in found.items()]).std().item()
    return [
        *({"n": n, **row} for n, row in found.items()),
        {"kind": "stability", "spread of H / log n": spread},
    ]


def conclude(results: RunResults) -> list[str]:
    """Order the rules at the longest length, and say which betas do something.

    Args:
        results: rows of a run.
    """
    lines = []
    for n in sorted({128, max(results.values("n"))}):
        losses = {r: results.over("loss", condition=r, n=n) for r in results.values("condition")}
        order = sorted(losses, key=lambda rule: losses[rule].mean)
        said = ", ".join(f"{losses[rule].text(3)} ({rule})" for rule in order)
        lines.append(f"The loss at {n} bytes in nats, least first: {said}.")
    lines.append(
        "Models were trained on texts of 16 to 128 bytes, and judged by the last 64 bytes of a "
        "window of the held-out text (the end of the sample that attentropy ships, from Acts)."
    )
    return lines


def conditions(config: AblationConfig) -> Sequence[str]:
    """Rules of the scale.

    Args:
        config: sizes of the experiment.
    """
    return config.rules


EXPERIMENT = Experiment(
    name="ablation",
    question="Trained on texts of varying length: 1/sqrt d, log n/d, or a mixture, and which beta?",
    full=AblationConfig(),
    quick=AblationConfig(
        steps=80, tested=(64, 128), windows=4, rules=(PLAIN, "log n/d", "mixed 1")
    ),
    conditions=conditions,
    measure=measure,
    tables=(
        TableSpec("Loss, nats", "loss", ("condition",), "n", digits=3),
        TableSpec("Entropy, nats", "entropy", ("condition",), "n"),
        TableSpec("Standard deviation of H / log n over lengths", "spread of H / log n",
                  ("condition",), "kind", {"kind": "stability"}, 3),
        TableSpec("Steps to the target loss", "steps to target", ("condition",), "kind",
                  {"kind": "training"}, 0),
    ),
    figures=(
        FigureSpec("loss", "Loss beyond the lengths of training", "n", "loss", "condition",
                   labels=("bytes", "loss, nats"), log="x"),
    ),
    conclude=conclude,
)  # fmt: skip
