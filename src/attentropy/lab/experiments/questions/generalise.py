"""generalise: entropy under dropout, decay and entropy losses; does it go with generalising?"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from attentropy.attention.attend import attend
from attentropy.core.scales import InverseSqrt, LogLengthFrom, ScaleRule
from attentropy.lab.harness.experiment import Experiment, FigureSpec, Row, TableSpec
from attentropy.lab.harness.results import RunResults
from attentropy.lab.subjects.retriever import CLASSES, Retriever, sets


class Regulariser(NamedTuple):
    """How training is regularised: `entropy` times H is added to the loss."""

    dropout: float = 0.0
    decay: float = 0.0
    entropy: float = 0.0


KINDS = {
    "none": Regulariser(),
    "dropout 0.1": Regulariser(dropout=0.1),
    "dropout 0.3": Regulariser(dropout=0.3),
    "weight decay 0.3": Regulariser(decay=0.3),
    "weight decay 3": Regulariser(decay=3.0),
    "low entropy": Regulariser(entropy=0.1),
    "high entropy": Regulariser(entropy=-0.1),
}


LEARNED = 80.0
"""% of its training sets that a model answers as it was taught, if it has learned them."""


@dataclass(frozen=True)
class GeneraliseConfig:
    """Few training sets, a share of them with wrong answers, so that a model can overfit."""

    width: int = 32
    items: int = 16
    longer: int = 256
    sets: int = 192
    wrong: float = 0.1
    steps: int = 800
    rate: float = 1e-2
    noise: float = 0.5
    target: float = LEARNED  # for the steps that training needs
    tested: int = 2048


def scale_of(config: GeneraliseConfig, condition: str) -> ScaleRule:
    """The scale of a condition.

    Args:
        config: sizes of the experiment.
        condition: one of conditions(config).
    """
    return LogLengthFrom(config.items) if condition == "log n" else InverseSqrt()


def measure(config: GeneraliseConfig, condition: str, seed: int) -> list[Row]:
    """Train with every regulariser; entropy, steps, answers on new, longer and noisy sets.

    Args:
        config: sizes of the experiment.
        condition: one of conditions(config).
        seed: of the random numbers.
    """
    return [{"regulariser": n, **_one(config, condition, k, seed)} for n, k in KINDS.items()]


def _one(config: GeneraliseConfig, condition: str, kind: Regulariser, seed: int) -> Row:
    torch.manual_seed(seed)
    rng = torch.Generator().manual_seed(seed)
    model = Retriever(config.width, scale_of(config, condition))
    priority, kinds, right = sets(config.sets, config.items, rng)
    spoilt = torch.rand(config.sets, generator=rng) < config.wrong
    wanted = torch.where(spoilt, torch.randint(CLASSES, right.shape, generator=rng), right)
    optimiser = torch.optim.AdamW(model.parameters(), config.rate, weight_decay=kind.decay)
    reached = math.nan
    for step in range(config.steps):
        logits, entropy = _read(model, priority, kinds, dropout=kind.dropout)
        loss = F.cross_entropy(logits, wanted) + kind.entropy * entropy.mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if math.isnan(reached) and _share(logits, wanted) >= config.target:
            reached = step
    return {"steps to target": reached, **_judged(config, model, (priority, kinds, wanted), rng)}


def _read(
    model: Retriever, priority: Tensor, kinds: Tensor, *, dropout: float = 0.0, noise: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Logits of the classes and the entropy, with dropout of weights or noise on the logits."""
    k, v = model.encoded(priority, kinds)
    eps = noise * torch.randn(len(k), 1, 1, k.shape[2]) if noise else None
    out, stats = attend(model.asked(k), k, v, scale=model.scale, dropout=dropout, bias=eps)
    assert stats.entropy is not None
    return model.answer(out[:, 0, 0]), stats.entropy[:, 0, 0]


def _judged(
    config: GeneraliseConfig,
    model: Retriever,
    seen: tuple[Tensor, Tensor, Tensor],
    rng: torch.Generator,
) -> Row:
    with torch.no_grad():
        own = _share(_read(model, *seen[:2])[0], seen[2])
        priority, kinds, right = sets(config.tested, config.items, rng)
        logits, entropy = _read(model, priority, kinds)
        new = _share(logits, right)
        noisy = _share(_read(model, priority, kinds, noise=config.noise)[0], right)
        far = sets(config.tested // 4, config.longer, rng)
        longer = _share(_read(model, *far[:2])[0], far[2])
    return {
        "entropy": entropy.mean().item(), "trained": own, "new": new, "gap": own - new,
        "noisy": noisy, "longer": longer, "lost to noise": new - noisy,
    }  # fmt: skip


def _share(logits: Tensor, wanted: Tensor) -> float:
    return 100 * (logits.argmax(-1) == wanted).float().mean().item()


def correlation(results: RunResults, metric: str) -> tuple[float, float]:
    """Correlation of entropy with a metric over trained models, and its standard error.

    The error is that of 500 samples of seeds with replacement: models of one seed share their sets.

    Args:
        results: rows of a run.
        metric: a column.
    """
    seeds = [
        np.array([[row["entropy"], row[metric]] for row in results.where(seed=seed)])
        for seed in results.values("seed")
    ]
    rng = np.random.default_rng(0)
    drawn = [_corr([seeds[i] for i in rng.integers(len(seeds), size=len(seeds))])
             for _ in range(500)]  # fmt: skip
    kept = [one for one in drawn if math.isfinite(one)]
    return _corr(seeds), float(np.std(kept)) if kept else math.nan


def _corr(parts: Sequence[Any]) -> float:
    """Correlation of the two columns; NaN without a spread."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return float(np.corrcoef(np.concatenate(parts).T)[0, 1]) if parts else math.nan


def within_regularisers(results: RunResults, metric: str) -> RunResults:
    """Entropy and a metric of each model, less their means over the seeds of its regulariser.

    Args:
        results: rows of a run.
        metric: a column.
    """
    rows = []
    for name in results.values("regulariser"):
        own = results.where(regulariser=name)
        means = {column: own.mean(column) for column in ("entropy", metric)}
        rows += [{"seed": r["seed"], **{c: r[c] - m for c, m in means.items()}} for r in own]
    return RunResults(rows)


def conclude(results: RunResults) -> list[str]:
    """Say what entropy correlates with, and what each regulariser does.

    Args:
        results: rows of a run.
    """
    plain = results.where(condition=results.values("condition")[0])
    learned = RunResults(row for row in plain if row["trained"] >= LEARNED)
    said = {
        "gap": "how much more is right on training sets than on new ones",
        "new": "right answers on new sets",
        "longer": "right answers on longer sets",
        "lost to noise": "right answers lost to noise",
    }
    lines = [_who_learned(plain, learned)]
    lines += [_correlated(learned, metric, words) for metric, words in said.items()]
    return [*lines, *(_regulariser(results, name) for name in results.values("regulariser"))]


def _who_learned(plain: RunResults, learned: RunResults) -> str:
    failed = {
        name: len(plain.where(regulariser=name)) - len(learned.where(regulariser=name))
        for name in plain.values("regulariser")
    }
    told = ", ".join(f"{count} with {name}" for name, count in failed.items() if count) or "none"
    return (
        f"{len(learned)} of {len(plain)} models answer at least {LEARNED:g} % of their training "
        f"sets as taught; of those that do not, {told}. Correlations are over the models that "
        "learned: one that learned nothing has no generalisation to explain. Both scales are equal "
        "at the trained number of items, so each model counts once; its error is over seeds."
    )


def _correlated(learned: RunResults, metric: str, words: str) -> str:
    """The correlation over all regularisers, and that between seeds of one."""
    told = []
    for rows in (learned, within_regularisers(learned, metric)):
        r, error = correlation(rows, metric)
        doubt = "" if abs(r) > 2 * error else ", within two errors of none"
        told.append(f"{r:+.2f} ± {error:.2f}{doubt}")
    return (
        f"Entropy and {words}: correlation {told[0]}; between models that differ in their seed "
        f"alone, {told[1]}."
    )


def _regulariser(results: RunResults, name: str) -> str:
    one = results.where(regulariser=name)
    first, *others = one.values("condition")
    here = one.where(condition=first)
    longer = [f"{one.over('longer', condition=c).text(1)} % with {c}" for c in (first, *others)]
    steps = here.over("steps to target")
    seeds = len(here.values("seed"))
    reached = (
        f"after {steps.text(0)} steps in {steps.size} of {seeds} seeds"
        if steps.size
        else ("in no seed")
    )
    acts = ", where dropout acts," if name.startswith("dropout") else ""
    return (
        f"{name}: entropy {here.over('entropy').text(2)}, right on new sets "
        f"{here.over('new').text(1)} %, with noise {here.over('noisy').text(1)} %, on longer sets "
        f"{' and '.join(longer)}. In training{acts} {LEARNED:g} % are right "
        f"{reached}."
    )


def conditions(config: GeneraliseConfig) -> Sequence[str]:
    """The two scales.

    Args:
        config: sizes of the experiment.
    """
    return ("1/sqrt d", "log n")


EXPERIMENT = Experiment(
    name="generalise",
    question="Does entropy correlate with generalisation, "
    "and how do dropout, decay and entropy losses act?",
    full=GeneraliseConfig(),
    quick=GeneraliseConfig(steps=150, tested=512),
    conditions=conditions,
    measure=measure,
    tables=tuple(
        TableSpec(title, metric, ("regulariser",), "condition", digits=digits)
        for title, metric, digits in (
            ("Entropy on new sets, nats", "entropy", 2),
            ("Right on new sets, %", "new", 1),
            ("Trained minus new, %", "gap", 1),
            ("Right on sets of 16 times the items, %", "longer", 1),
            ("Right with noise on the logits, %", "noisy", 1),
            ("Steps to the target", "steps to target", 0),
        )
    ),
    figures=(
        FigureSpec("entropy", "Entropy and what is right on new sets", "entropy", "new",
                   "regulariser", labels=("entropy, nats", "right, %")),
    ),
    conclude=conclude,
)  # fmt: skip
