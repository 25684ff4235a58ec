"""sparsity: measured S of four kinds of weights, and what S does to finding one key among many."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attentropy.attention.attend import attend
from attentropy.core.weights import L1, Decay, Kernelised, Linear, ReluSquared, Softmax, Weights
from attentropy.lab.harness.experiment import Experiment, FigureSpec, Row, TableSpec
from attentropy.lab.harness.results import RunResults
from attentropy.theory import sparsity

FORMS, RETRIEVAL = "closed forms", "retrieval"
SCORED = ("softmax", "relu squared", "linear")


@dataclass(frozen=True)
class SparsityConfig:
    """Keys N(mean, 1) along the query for the closed forms; a planted key for the retrieval."""

    spreads: tuple[float, ...] = (0.25, 0.5, 1.0, 1.5, 2.0)
    shifts: tuple[float, ...] = (-1.0, 0.0, 1.0)  # beta in units of gamma
    rates: tuple[float, ...] = (0.5, 0.8, 0.9, 0.97, 0.99)
    keys: int = 16384
    rows: int = 16
    lengths: tuple[int, ...] = (8, 32, 128, 512, 2048)
    width: int = 64
    noise: float = 0.35  # of the query, relative to the key it asks for
    queries: int = 256


def measure(config: SparsityConfig, condition: str, seed: int) -> list[Row]:
    """Measure the sparsity of weights, or what it does to finding a key.

    Args:
        config: sizes of the experiment.
        condition: one of conditions(config).
        seed: of the random numbers.
    """
    rng = torch.Generator().manual_seed(seed)
    return _forms(config, rng) if condition == FORMS else _retrieval(config, rng)


def _forms(config: SparsityConfig, rng: torch.Generator) -> list[Row]:
    """S of sampled rows beside the closed forms."""
    rows: list[Row] = []
    noise = torch.randn(config.rows, config.keys, generator=rng, dtype=torch.float64)
    for ratio in config.shifts:
        for gamma in config.spreads:
            s, beta = gamma * (noise + ratio), gamma * ratio
            laws: dict[str, tuple[Tensor, float]] = {
                "softmax": (s.exp(), float(sparsity.exp(beta, gamma))),
                "relu squared": (s.relu().square(), float(sparsity.relu2(beta, gamma))),
                "linear": (s, float(sparsity.identity(beta, gamma))),
            }
            for name, (weight, theory) in laws.items():
                shown = {"weights": name, "beta/gamma": ratio, "x": gamma}
                rows.append({**shown, "S": _sparsity(weight), "theory": theory})
    return rows + [_decay(rate, config.keys) for rate in config.rates]


def _sparsity(weight: Tensor) -> float:
    """E|a| / sqrt(E a^2), both over all rows."""
    return (weight.abs().mean() / weight.square().mean().sqrt()).item()


def _decay(rate: float, keys: int) -> Row:
    """Measured through attend(), at the last query."""
    n = min(keys, 1024)
    one = torch.ones(1, 1, n, 1)
    _, stats = attend(one[:, :, -1:], one, one, weights=Decay(torch.tensor([rate])))
    measured = stats.sparsity.item()
    return {"weights": "decay", "beta/gamma": 0.0, "x": rate, "S": measured,
            "theory": float(sparsity.decay(rate, n))}  # fmt: skip


def _retrieval(config: SparsityConfig, rng: torch.Generator) -> list[Row]:
    """A noisy query asks for one of n random keys; is its value the nearest to the output?"""
    kinds: dict[str, Callable[[], tuple[Weights, float | None]]] = {
        "softmax": lambda: (Softmax(), 2 / config.width**0.5),
        "relu squared": lambda: (L1(ReluSquared()), None),
        "linear": lambda: (L1(Linear()), None),
        "linear, elu + 1": lambda: (Kernelised(), None),
        "decay 0.9": lambda: (Decay(torch.tensor([0.9])), None),
    }
    rows: list[Row] = []
    for n in config.lengths:
        batch = max(1, config.queries // 8)
        k = torch.randn(batch, 1, n, config.width, generator=rng)
        v = torch.randn(batch, 1, n, config.width, generator=rng)
        asked = torch.randint(n, (batch, 8), generator=rng)
        q = k[:, 0].gather(1, asked[..., None].expand(-1, -1, config.width))
        q = (q + config.noise * torch.randn(q.shape, generator=rng))[:, None]
        for name, make in kinds.items():
            weights, scale = make()
            out, stats = attend(q, k, v, weights=weights, scale=scale)
            found = (out @ v.mT)[:, 0].argmax(-1) == asked
            row = {"weights": name, "n": n, "accuracy": 100 * found.float().mean().item()}
            if not isinstance(weights, Kernelised):
                row["S"] = stats.sparsity.mean().item()
            rows.append(row)
    return rows


def conclude(results: RunResults) -> list[str]:
    """Say how far closed forms and measurement are apart, and which weights find the key.

    Args:
        results: rows of a run.
    """
    forms = list(results.where(condition=FORMS))
    tame = [r for r in forms if not (r["weights"] == "softmax" and r["x"] > 1.5)]
    off = max(abs(r["S"] / r["theory"] - 1) for r in tame)
    lines = [
        f"Closed forms: within {100 * off:.1f} % of the measurement, but for softmax at spread 2: "
        "there the mean square rests on rare large weights, which finitely many keys do not show."
    ]
    found = results.where(condition=RETRIEVAL)
    far = max(found.values("n"))
    said = ", ".join(
        f"{w} {found.mean('accuracy', weights=w, n=far):.0f} %" for w in found.values("weights")
    )
    lines.append(f"One key among {far} is found in this share of the rows: {said}.")
    lines.append(
        "Linear weights have S >= sqrt(2/pi) = 0.80 whatever the scale: the row stays spread over "
        "all keys, and as n grows the n - 1 wrong values drown the right one. That is why linear "
        "attention cannot focus. relu squared has a fixed S too, but squares favour the strong "
        "match. Only softmax gets sparser as the scale grows."
    )
    return lines


def conditions(config: SparsityConfig) -> Sequence[str]:
    """The two parts of the experiment.

    Args:
        config: sizes of the experiment.
    """
    return (FORMS, RETRIEVAL)


EXPERIMENT = Experiment(
    name="sparsity",
    question="How sparse are softmax, relu squared, linear and decay, and can they focus?",
    full=SparsityConfig(),
    quick=SparsityConfig(keys=4096, rows=8, lengths=(8, 64, 512), queries=64),
    conditions=conditions,
    measure=measure,
    tables=(
        TableSpec("Measured S by spread x of the scores", "S", ("weights", "beta/gamma"), "x",
                  {"condition": FORMS, "weights": SCORED}, 3),
        TableSpec("Closed form", "theory", ("weights", "beta/gamma"), "x",
                  {"condition": FORMS, "weights": SCORED}, 3),
        TableSpec("Measured S by rate x of decay", "S", ("weights",), "x", {"weights": "decay"}, 4),
        TableSpec("Closed form", "theory", ("weights",), "x", {"weights": "decay"}, 4),
        TableSpec("Found, %", "accuracy", ("weights",), "n", {"condition": RETRIEVAL}, 1),
        TableSpec("S in the retrieval", "S", ("weights",), "n", {"condition": RETRIEVAL}, 3),
    ),
    figures=(
        FigureSpec("sparsity", "Sparsity of weights by the ratio of mean and spread of the scores",
                   "x", "S", "weights", panels="beta/gamma",
                   where={"condition": FORMS, "weights": SCORED},
                   labels=("spread of the scores", "S"), theory="theory"),
        FigureSpec("retrieval", "Finding the value of one key among n", "n", "accuracy", "weights",
                   where={"condition": RETRIEVAL}, labels=("keys", "found, %"), log="x"),
    ),
    conclude=conclude,
)  # fmt: skip
