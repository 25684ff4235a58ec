"""scales: what a row's entropy does as keys are added, under every rule, for four populations."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attentropy.attention.attend import attend
from attentropy.core.scales import (
    HoldEntropy,
    InverseSqrt,
    LogLength,
    LogLengthFrom,
    Mixed,
    PowerLength,
    ScaleRule,
)
from attentropy.lab.harness.experiment import Experiment, FigureSpec, Row, TableSpec
from attentropy.lab.harness.results import RunResults
from attentropy.lab.subjects import score_laws
from attentropy.lab.subjects.real_heads import EMBEDDED, Given, given_embedded, on_heads, real_heads
from attentropy.lab.subjects.sample_text import has_embedded
from attentropy.theory import gaussian
from attentropy.theory.populations import uniform_deficit

REAL, NARROW = "real heads", "gaussian, spread 1"
DOCUMENTS = "log n/d"  # as the documents write it, with kappa = 1


@dataclass(frozen=True)
class ScalesConfig:
    """Scores have the spread `spread` at `reference` keys, or 1 where the condition says so.

    Real heads are those of `model`.
    """

    lengths: tuple[int, ...] = (64, 256, 1024, 4096, 16384)
    model: str = EMBEDDED
    real_lengths: tuple[int, ...] = (64, 128, 256, 512, 1024)
    populations: tuple[str, ...] = ("gaussian", NARROW, "planted", "bounded", REAL)
    reference: int = 64
    spread: float = 2.0
    margin: float = 5.0  # of the planted key, in standard deviations of the others
    rows: int = 64
    texts: int = 4
    width: int = 16


def rules(width: int, reference: int, spread: float) -> dict[str, ScaleRule]:
    """The rules compared; all but `mixed` and `log n/d` equal 1/sqrt d at `reference`.

    kappa log n/d with kappa = sqrt d/log m is log n/log m/sqrt d from m = `reference` keys on, and
    is not listed twice.

    Args:
        width: of queries and keys.
        reference: number of keys at which the rules agree.
        spread: of the scaled scores there.
    """
    return {
        "1/sqrt d": InverseSqrt(),
        DOCUMENTS: LogLength(),
        "log n/log m/sqrt d": LogLengthFrom(reference),
        "mixed": Mixed(),
        "n^(1/2)": PowerLength(0.5, reference),
        "n": PowerLength(1.0, reference),
        "HoldEntropy": HoldEntropy(reference, spread),
    }


def measure(
    config: ScalesConfig, condition: str, seed: int, *, given: Given | None = None
) -> list[Row]:
    """Entropy at every length and under every rule.

    Args:
        config: sizes of the experiment.
        condition: one of conditions(config).
        seed: of the random numbers.
        given: model whose heads are taken; None takes the embedded one.
    """
    if condition == REAL:
        return _real(config, seed, given_embedded() if given is None else given)
    rng = torch.Generator().manual_seed(seed)
    spread = 1.0 if condition == NARROW else config.spread
    draw: Callable[..., Tensor] = {
        "gaussian": score_laws.gaussian,
        NARROW: score_laws.gaussian,
        "bounded": score_laws.bounded,
        "planted": score_laws.planted(config.margin),
    }[condition]
    rows = []
    for n in config.lengths:
        scores = spread * draw(config.rows, n, rng)
        q, k = score_laws.along_one_axis(scores, config.width)
        for name, rule in rules(config.width, config.reference, spread).items():
            _, stats = attend(q, k, k[..., :1], scale=rule)
            gain = float(rule(config.width, torch.tensor([n]))) * config.width**0.5
            row = {"rule": name, "n": n, "entropy": _mean(stats.entropy), "gain": gain}
            row["theory"] = _theory(condition, n, gain * spread, config.margin)
            if condition == "planted":
                assert stats.lse is not None
                row["found"] = _mean((scores[:, 0, None] * gain - stats.lse[:, 0]).exp())
            rows.append(row)
    return rows


def _mean(x: Tensor | None) -> float:
    assert x is not None
    return x.double().mean().item()


def _theory(condition: str, n: int, spread: float, margin: float) -> float:
    """Exact for Gaussian rows, of the population for bounded ones, annealed for planted ones."""
    if condition in ("gaussian", NARROW):
        return float(gaussian.expected_entropy(n, spread))
    if condition == "bounded":
        # beyond the last gap of n keys the population no longer describes a row
        return max(0.0, math.log(n) - float(uniform_deficit(2 * 3**0.5 * spread)))
    if spread > float(gaussian.freezing_spread(n)):
        return math.nan
    p = float(gaussian.planted_mass(spread, n, margin))
    inside = float(gaussian.expected_entropy(n, spread))
    return _binary(p) + (1 - p) * inside


def _binary(p: float) -> float:
    return -sum(x * math.log(x) for x in (p, 1 - p) if x > 0)


def _real(config: ScalesConfig, seed: int, given: Given) -> list[Row]:
    """The heads of a model, each held by its own spread at the reference length."""
    known = real_heads(given, config.reference, texts=config.texts, seed=seed)
    spreads = [_spread(head.logits) for head in known]
    rows: list[Row] = []
    for n in config.real_lengths:
        heads = real_heads(given, n, texts=config.texts, seed=seed)
        entropies: dict[str, list[float]] = {}
        for head, spread in zip(heads, spreads, strict=True):
            width, visible = max(head.width, 1), (~head.logits.isneginf()).sum(-1)
            for name, rule in rules(width, config.reference, spread).items():
                gain = rule(width, visible)[..., None] * width**0.5
                entropies.setdefault(name, []).append(_entropy(head.logits * gain))
        rows += [{"rule": r, "n": n, "entropy": sum(h) / len(h)} for r, h in entropies.items()]
    return rows


def _spread(s: Tensor) -> float:
    """Standard deviation of the visible logits of a row, averaged over rows."""
    seen = ~s.isneginf()
    mean = s.masked_fill(~seen, 0.0).sum(-1, keepdim=True) / seen.sum(-1, keepdim=True)
    square = (s - mean).masked_fill(~seen, 0.0).square().sum(-1) / seen.sum(-1)
    return max(square.sqrt().mean().item(), 1e-6)


def _entropy(s: Tensor) -> float:
    """Mean entropy of rows of logits; a rule that is 0 leaves hidden keys hidden."""
    p = s.nan_to_num(nan=-torch.inf).double().softmax(-1)
    return torch.special.entr(p).sum(-1).mean().item()


def conclude(results: RunResults) -> list[str]:
    """Say which rule moves the entropy least for each population, and how well the theory did.

    Args:
        results: rows of a run.
    """
    lines = []
    for population in results.values("condition"):
        chosen = results.where(condition=population)
        first, last = min(chosen.values("n")), max(chosen.values("n"))
        drift = {
            rule: chosen.mean("entropy", rule=rule, n=last)
            - chosen.mean("entropy", rule=rule, n=first)
            for rule in chosen.values("rule")
        }
        best = min(drift, key=lambda rule: abs(drift[rule]))
        lines.append(
            f"{population}: from n = {first} to {last} the entropy moves least under {best} "
            f"({drift[best]:+.2f} nats). It moves by {drift['1/sqrt d']:+.2f} under 1/sqrt d, "
            f"{drift['log n/log m/sqrt d']:+.2f} under log n/log m, "
            f"{drift['HoldEntropy']:+.2f} under HoldEntropy{_of_documents(drift)}."
        )
    exact = [r for r in results.where(condition="gaussian") if r.get("theory") is not None]
    worst = max(abs(r["entropy"] - r["theory"]) for r in exact)
    lines.append(
        "Which rule wins for Gaussian scores depends on their spread: compare the two Gaussian "
        "conditions. log n/d is the documents' rule with kappa = 1. With kappa = sqrt d/log m it "
        "is the same function as log n/log m from m keys on, so that has no row of its own."
    )
    lines.append(f"Gaussian rows: exact theory and measurement differ by at most {worst:.2f} nats.")
    return lines


def _of_documents(drift: dict[str, float]) -> str:
    """The drift under the documents' own rule, if it was run."""
    return f" and {drift[DOCUMENTS]:+.2f} under log n/d" if DOCUMENTS in drift else ""


def conditions(config: ScalesConfig) -> Sequence[str]:
    """Populations; real heads only where the embedded model is installed.

    Args:
        config: sizes of the experiment.
    """
    return [p for p in config.populations if p != REAL or has_embedded()]


def on(given: Given) -> Experiment:
    """This experiment with the real heads of a given model.

    Args:
        given: model, text and name.
    """
    return on_heads(
        EXPERIMENT, given, conditions=lambda config: config.populations, measure=measure
    )


EXPERIMENT = Experiment(
    name="scales",
    question="Which scale keeps the entropy of a row as keys are added, and for which scores?",
    full=ScalesConfig(),
    quick=ScalesConfig(
        lengths=(64, 256, 1024, 4096), real_lengths=(64, 128, 256), rows=16, texts=1
    ),
    conditions=conditions,
    measure=measure,
    tables=(
        TableSpec("Entropy, nats", "entropy", ("condition", "rule"), "n"),
        TableSpec("Weight on the planted key", "found", ("rule",), "n", {"condition": "planted"},
                  3),
    ),
    figures=(
        FigureSpec("entropy", "Entropy of a row under each scale rule", "n", "entropy", "rule",
                   panels="condition", labels=("keys", "entropy, nats"), log="x", theory="theory"),
    ),
    conclude=conclude,
    on=on,
)  # fmt: skip
