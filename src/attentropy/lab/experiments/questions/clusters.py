"""clusters: scores that fall into clusters; which scale holds the entropy of a row then?"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from scipy.optimize import brentq
from torch import Tensor

from attentropy.core.scales import HoldEntropy, LogLengthFrom
from attentropy.lab.harness.experiment import Experiment, FigureSpec, Row, TableSpec
from attentropy.lab.harness.results import RunResults

SHARES = {"one cluster": 0.0, "half above": 0.5, "a tenth above": 0.1, "one in 100 above": 0.01}
RULES = ("1/sqrt d", "log n", "HoldEntropy", "of the mixture")


@dataclass(frozen=True)
class ClustersConfig:
    """Scores N(0, 1), a share of them moved up by `gap`; rules agree at `reference` keys."""

    lengths: tuple[int, ...] = (256, 1024, 4096, 16384)
    reference: int = 256
    gap: float = 3.0
    rows: int = 200


def log_moment(factor: float, share: float, gap: float) -> float:
    """log E e^(factor s) of the mixture.

    Args:
        factor: on the scores.
        share: of the scores that are moved up.
        gap: by which they are moved.
    """
    return factor**2 / 2 + math.log(1 - share + share * math.exp(factor * gap))


def deficit(factor: float, share: float, gap: float) -> float:
    """log n - H of infinitely many scores of the mixture: f K'(f) - K(f), K its log_moment().

    Args:
        factor: on the scores.
        share: of the scores that are moved up.
        gap: by which they are moved.
    """
    upper = share * math.exp(factor * gap)
    slope = factor + gap * upper / (1 - share + upper)
    return factor * slope - log_moment(factor, share, gap)


def mixture_factor(n: int, reference: int, share: float, gap: float) -> float:
    """The factor on the scores that gives n keys the entropy of `reference` keys.

    Args:
        n: number of keys.
        reference: number of keys at which it is 1.
        share: of the scores that are moved up.
        gap: by which they are moved.
    """
    wanted = deficit(1.0, share, gap) + math.log(n / reference)
    return float(brentq(lambda f: deficit(f, share, gap) - wanted, 0.0, 50.0))


def _factor(rule: str, n: int, config: ClustersConfig, share: float) -> float:
    spread = math.sqrt(1 + share * (1 - share) * config.gap**2)
    count = torch.tensor(float(n), dtype=torch.float64)
    if rule == "of the mixture":
        return mixture_factor(n, config.reference, share, config.gap)
    if rule == "log n":
        return float(LogLengthFrom(config.reference)(1, count))
    return float(HoldEntropy(config.reference, spread)(1, count)) if rule == "HoldEntropy" else 1.0


def measure(config: ClustersConfig, condition: str, seed: int) -> list[Row]:
    """Entropy at every length under every rule.

    Args:
        config: sizes of the experiment.
        condition: one of conditions(config).
        seed: of the random numbers.
    """
    rng, share = torch.Generator().manual_seed(seed), SHARES[condition]
    rows: list[Row] = []
    for n in config.lengths:
        s = torch.randn(config.rows, n, generator=rng, dtype=torch.float64)
        s = s + config.gap * (torch.rand(s.shape, generator=rng) < share)
        for rule in RULES:
            factor = _factor(rule, n, config, share)
            rows.append({"rule": rule, "n": n, "entropy": _entropy(factor * s), "factor": factor})
    return rows


def _entropy(s: Tensor) -> float:
    return torch.special.entr(s.softmax(-1)).sum(-1).mean().item()


def conclude(results: RunResults) -> list[str]:
    """Say how far the entropy moves under every rule.

    Args:
        results: rows of a run.
    """
    lines = []
    first, last = min(results.values("n")), max(results.values("n"))
    for condition in results.values("condition"):
        chosen = results.where(condition=condition)
        moves = {
            rule: chosen.mean("entropy", rule=rule, n=last)
            - chosen.mean("entropy", rule=rule, n=first)
            for rule in chosen.values("rule")
        }
        said = ", ".join(f"{move:+.2f} under {rule}" for rule, move in moves.items())
        lines.append(
            f"{condition}: from {first} to {last} keys the entropy changes by {said} (nats)."
        )
    lines.append(
        "With clusters the entropy holds under the factor f of their mixture: f K'(f) - K(f) = log "
        "n + constant, where K is the log of the mean of e^(f s). A rule that is made for one "
        "Gaussian of the same spread misses it by as much as the table says."
    )
    return lines


def conditions(config: ClustersConfig) -> Sequence[str]:
    """Shares of scores in the upper cluster.

    Args:
        config: sizes of the experiment.
    """
    return tuple(SHARES)


EXPERIMENT = Experiment(
    name="clusters",
    question="Scores in clusters: which scale holds the entropy of a row as keys are added?",
    full=ClustersConfig(),
    quick=ClustersConfig(lengths=(256, 1024, 4096), rows=50),
    conditions=conditions,
    measure=measure,
    tables=(
        TableSpec("Entropy, nats", "entropy", ("condition", "rule"), "n"),
        TableSpec("Factor on the scores", "factor", ("condition", "rule"), "n"),
    ),
    figures=(
        FigureSpec("entropy", "Entropy of rows whose scores are clustered", "n", "entropy", "rule",
                   panels="condition", labels=("keys", "entropy, nats"), log="x"),
    ),
    conclude=conclude,
)  # fmt: skip
