"""positions: how strong may positions be? Uniform, useful, collapsed; with and without content."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attentropy.analysis.positional import positional_share
from attentropy.attention.attend import attend
from attentropy.core.masks import causal
from attentropy.core.scores import ALiBi
from attentropy.lab.harness.experiment import Experiment, FigureSpec, Row, TableSpec
from attentropy.lab.harness.results import RunResults
from attentropy.nn.positions.encodings import SinusoidalPositions
from attentropy.theory.entropy import geometric_entropy

ABSOLUTE, RELATIVE = "absolute amplitude", "relative decay"
UNIFORM, COLLAPSED = 0.95, 0.25  # shares of log n between which attention is useful


@dataclass(frozen=True)
class PositionsConfig:
    """Random projections of content N(0, 1) and positions, many heads as a sample."""

    amplitudes: tuple[float, ...] = (0.0625, 0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
    slopes: tuple[float, ...] = (0.002, 0.008, 0.03, 0.125, 0.5, 2.0, 8.0)
    length: int = 512
    width: int = 64
    heads: int = 16


def measure(config: PositionsConfig, condition: str, seed: int) -> list[Row]:
    """Entropy and the share of position at every strength.

    Args:
        config: sizes of the experiment.
        condition: one of conditions(config).
        seed: of the random numbers.
    """
    rng = torch.Generator().manual_seed(seed)
    kind, content = condition.split(", ")
    amount = 1.0 if content == "content" else 0.0
    if kind == ABSOLUTE:
        return [_absolute(config, a, amount, rng) for a in config.amplitudes]
    return [_relative(config, a, amount, rng) for a in config.slopes]


def _projections(x: Tensor, config: PositionsConfig, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Random queries and keys [1,H,n,d] whose variance is that of x."""
    shape = (2, config.heads, x.shape[-1], config.width)
    w_q, w_k = torch.randn(shape, generator=rng) * x.shape[-1] ** -0.5
    return (x @ w_q)[None], (x @ w_k)[None]


def _absolute(
    config: PositionsConfig, amplitude: float, amount: float, rng: torch.Generator
) -> Row:
    x = amount * torch.randn(config.length, config.width, generator=rng)
    x = SinusoidalPositions(amplitude)(x[None])[0]
    q, k = _projections(x, config, rng)
    return {"strength": amplitude, **_judged(q, k, None)}


def _relative(config: PositionsConfig, slope: float, amount: float, rng: torch.Generator) -> Row:
    x = amount * torch.randn(config.length, config.width, generator=rng)
    q, k = _projections(x, config, rng)
    bias = ALiBi(torch.full((config.heads,), slope))
    row = {"strength": slope, **_judged(q, k, bias)}
    if not amount:
        log_n = float(torch.tensor(config.length).log())
        pure = float(geometric_entropy(float(torch.tensor(-slope).exp())))
        row["theory"] = pure / log_n if slope * config.length > 8 else float("nan")
    return row


def _judged(q: Tensor, k: Tensor, bias: ALiBi | None) -> Row:
    """Normalised entropy of the last query, and what distance explains of the logits."""
    _, stats = attend(q[:, :, -1:], k, k[..., :1], mask=causal, bias=bias)
    share = positional_share(q, k, mask=causal, bias=bias)
    assert stats.normalized_entropy is not None
    return {
        "entropy": stats.normalized_entropy.mean().item(),
        "top": stats.top_probability.mean().item(),  # type: ignore[union-attr]
        "share": share.nanmean().item(),
    }


def conclude(results: RunResults) -> list[str]:
    """Say at which strengths attention is uniform, useful and collapsed.

    Args:
        results: rows of a run.
    """
    lines = []
    for condition in results.values("condition"):
        chosen = results.where(condition=condition)
        strengths, entropy = chosen.curve("strength", "entropy")
        level = {s: e.mean for s, e in zip(strengths, entropy, strict=True)}
        useful = [s for s in strengths if COLLAPSED <= level[s] <= UNIFORM]
        collapsed = [s for s in strengths if level[s] < COLLAPSED]
        uniform = [s for s in strengths if level[s] > UNIFORM]
        lines.append(
            f"{condition}: uniform (H > {UNIFORM} log n) at {_span(uniform)}, useful at "
            f"{_span(useful)}, collapsed (H < {COLLAPSED} log n) at {_span(collapsed)}."
        )
    lines.append(
        "An absolute encoding enters the scores as its square: doubling the amplitude quadruples "
        "the spread, so the useful range is narrow. A relative decay bounds the entropy at that of "
        "the geometric law, whatever the length and the content."
    )
    return lines


def _span(values: list[float]) -> str:
    if not values:
        return "none of the strengths tried"
    return f"{values[0]:g}" if len(values) == 1 else f"{values[0]:g} to {values[-1]:g}"


def conditions(config: PositionsConfig) -> Sequence[str]:
    """Two kinds of positions, each with and without content.

    Args:
        config: sizes of the experiment.
    """
    return [f"{kind}, {c}" for kind in (ABSOLUTE, RELATIVE) for c in ("content", "no content")]


EXPERIMENT = Experiment(
    name="positions",
    question="How strong may positions be before attention is uniform or collapsed?",
    full=PositionsConfig(),
    quick=PositionsConfig(
        amplitudes=(0.125, 1.0, 4.0), slopes=(0.008, 0.125, 2.0), length=128, heads=4
    ),
    conditions=conditions,
    measure=measure,
    tables=(
        TableSpec("Entropy / log n of the last query, absolute", "entropy", ("condition",),
                  "strength", {"condition": (f"{ABSOLUTE}, content", f"{ABSOLUTE}, no content")}),
        TableSpec("Entropy / log n of the last query, relative", "entropy", ("condition",),
                  "strength", {"condition": (f"{RELATIVE}, content", f"{RELATIVE}, no content")}),
        TableSpec("Share of the logits' variance that distance explains, absolute", "share",
                  ("condition",), "strength",
                  {"condition": (f"{ABSOLUTE}, content", f"{ABSOLUTE}, no content")}),
    ),
    figures=(
        FigureSpec("absolute", "Absolute encodings: entropy against amplitude", "strength",
                   "entropy", "condition", labels=("amplitude", "H / log n"), log="x",
                   where={"condition": (f"{ABSOLUTE}, content", f"{ABSOLUTE}, no content")}),
        FigureSpec("relative", "Relative decay: entropy against slope", "strength", "entropy",
                   "condition", labels=("slope", "H / log n"), log="x", theory="theory",
                   where={"condition": (f"{RELATIVE}, content", f"{RELATIVE}, no content")}),
    ),
    conclude=conclude,
)  # fmt: skip
