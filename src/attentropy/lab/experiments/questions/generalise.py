"""generalise: entropy under dropout, decay and entropy losses; does it go with generalising?"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

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
    target: float = 80.0  # % of the training sets, for the steps that training needs
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
    """Correlation of entropy with a metric over all trained models, and its standard error.

    The error is that of 500 samples of models with replacement.

    Args:
        results: rows of a run.
        metric: a column.
    """
    pairs = np.array([[row["entropy"], row[metric]] for row in results])
    rng = np.random.default_rng(0)
    with np.errstate(invalid="ignore"):  # without a spread there is none
        found = np.corrcoef(pairs.T)[0, 1]
        drawn = [
            np.corrcoef(pairs[rng.integers(len(pairs), size=len(pairs))].T)[0, 1]
            for _ in range(500)
        ]
    kept = [one for one in drawn if math.isfinite(one)]
    return float(found), float(np.std(kept)) if kept else math.nan


def conclude(results: RunResults) -> list[str]:
    """Say what entropy correlates with, and what each regulariser does.

    Args:
        results: rows of a run.
    """
    said = {
        "gap": "what training sets have over new ones",
        "new": "right answers on new sets",
        "longer": "right answers on longer sets",
        "lost to noise": "what noise costs",
    }
    lines = []
    for metric, words in said.items():
        r, error = correlation(results, metric)
        sure = "" if abs(r) > 2 * error else ", not told from none"
        lines.append(f"Entropy and {words}: correlation {r:+.2f} ± {error:.2f}{sure}.")
    for condition in results.values("condition"):
        chosen = results.where(condition=condition)
        for name in chosen.values("regulariser"):
            one = chosen.where(regulariser=name)
            lines.append(
                f"{condition}, {name}: H {one.over('entropy').text(2)}, new "
                f"{one.over('new').text(1)} %, longer {one.over('longer').text(1)} %, with noise "
                f"{one.over('noisy').text(1)} %, {one.over('steps to target').text(0)} steps."
            )
    return lines


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
