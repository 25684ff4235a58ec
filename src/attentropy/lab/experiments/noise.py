"""noise: how much of the noise on the scores reaches the output, and how that falls with n."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attentropy.lab.harness.experiment import Experiment, FigureSpec, Row, TableSpec
from attentropy.lab.harness.results import RunResults
from attentropy.lab.subjects.real_heads import (
    EMBEDDED,
    Given,
    Head,
    given_embedded,
    on_heads,
    real_heads,
)
from attentropy.lab.subjects.sample_text import has_embedded
from attentropy.theory import entropy, noise
from attentropy.theory._arrays import Array

LAWS = {
    "gaussian 0.5": ("gaussian", 0.5),
    "uniform 1": ("uniform", 1.0),
    "laplace 0.3": ("laplace", 0.3),
    "laplace 0.7": ("laplace", 0.7),
    "laplace 1.5": ("laplace", 1.5),
}  # from 1/2 on e^eps has no variance, from 1 on no mean
CORRELATED, SHARED, BY_INDEX = "correlated 0.5", "shared 0.5", "by index 0.5"
REAL = "real heads"


@dataclass(frozen=True)
class NoiseConfig:
    """Rows whose scores have spread 0 (flat) and `peak` (peaked), with values N(0, 1).

    Real rows are those of the heads of `model`, with its own values, centred and of variance 1.
    """

    lengths: tuple[int, ...] = (16, 64, 256, 1024, 4096)
    trials: int = 400
    rows: int = 6
    peak: float = 2.5
    laws: tuple[str, ...] = (*LAWS, CORRELATED, SHARED, BY_INDEX)
    model: str = EMBEDDED
    real_lengths: tuple[int, ...] = (64, 128, 256, 512)


def _noise(law: str, trials: int, n: int, rng: np.random.Generator) -> tuple[Array, float | Array]:
    """Noise [trials, n], and its relative variance (for each key)."""
    sigma = 0.5
    if law in LAWS:
        kind, scale = LAWS[law]
        return noise.draw(kind, scale, (trials, n), rng), float(
            noise.relative_variance(kind, scale)
        )
    if law == SHARED:
        return np.repeat(rng.normal(0, sigma, (trials, 1)), n, 1), 0.0
    if law == CORRELATED:  # half of the variance is common to all keys, and cannot act
        common = rng.normal(0, sigma * 0.5**0.5, (trials, 1))
        own = rng.normal(0, sigma * 0.5**0.5, (trials, n))
        return common + own, math.expm1(sigma**2 / 2)
    scales = 2 * sigma * np.arange(n) / n  # grows with the index, `sigma` on average
    return rng.normal(0, 1, (trials, n)) * scales, np.expm1(scales**2)


def _one(
    p: Array, law: str, trials: int, rng: np.random.Generator, values: Array | None = None
) -> Row:
    """Error of the output of one row: measured, predicted, and the effective number of keys."""
    values = rng.normal(0, 1, len(p)) if values is None else values
    if law == BY_INDEX:  # values that follow the index as well, so that a bias shows
        values += np.arange(len(p)) / len(p)
    eps, rho = _noise(law, trials, len(p), rng)
    error = noise.simulate(p, values, eps) - p @ values
    return {
        "error": float(np.sqrt(np.mean(error**2))),
        "theory": _predicted(p, values, law, rho),
        "n_eff": float(1 / (p @ p)),
    }


def _predicted(p: Array, values: Array, law: str, rho: float | Array) -> float:
    if not np.all(np.isfinite(rho)):
        return math.nan
    if law == BY_INDEX:  # noisier keys weigh more on average: e^(sigma_j^2/2)
        tilted = p * np.sqrt(1 + np.asarray(rho))
        tilted /= tilted.sum()
        drift = float(tilted @ values - p @ values)
        centred = values - tilted @ values
        return math.hypot(drift, float(np.sqrt(np.sum(rho * (tilted * centred) ** 2))))
    bias, std = noise.predict(p, values, float(rho))
    return float(np.sqrt(np.mean(np.square(bias) + np.square(std))))


def measure(
    config: NoiseConfig, condition: str, seed: int, *, given: Given | None = None
) -> list[Row]:
    """Root mean square error at every length, for flat and peaked rows, or those of a model.

    Args:
        config: sizes of the experiment.
        condition: one of conditions(config).
        seed: of the random numbers.
        given: model whose heads are taken; None takes the embedded one.
    """
    rng = np.random.default_rng([seed, *condition.encode()])
    if condition == REAL:
        return _real(config, seed, rng, given_embedded() if given is None else given)
    rows: list[Row] = []
    for shape, spread in (("flat", 0.0), ("peaked", config.peak)):
        for n in config.lengths:
            ps = [entropy.softmax(spread * rng.normal(0, 1, n)) for _ in range(config.rows)]
            each = [_one(p, condition, config.trials, rng) for p in ps]
            rows.append({"row": shape, "n": n, **_quadratic_mean(each)})
        rows.append({"row": shape, "kind": "slope", **_slope(rows, shape)})
    return rows


def _quadratic_mean(each: list[Row]) -> Row:
    mean = {m: math.sqrt(float(np.mean([e[m] ** 2 for e in each]))) for m in ("error", "theory")}
    # the harmonic mean of n_eff is what enters a mean of squared errors
    return {**mean, "n_eff": 1 / float(np.mean([1 / e["n_eff"] for e in each]))}


def _slope(rows: list[Row], shape: str) -> Row:
    """Exponents of error against n and against n_eff, by least squares of logarithms."""
    chosen = [r for r in rows if r["row"] == shape and "error" in r]
    error = np.log(np.maximum([r["error"] for r in chosen], 1e-300))
    if error.max() < -30:
        return {"slope": math.nan, "slope_n_eff": math.nan}
    against = {name: np.log([r[name] for r in chosen]) for name in ("n", "n_eff")}
    return {
        "slope": float(np.polyfit(against["n"], error, 1)[0]),
        "slope_n_eff": float(np.polyfit(against["n_eff"], error, 1)[0]),
    }


def _real(config: NoiseConfig, seed: int, rng: np.random.Generator, given: Given) -> list[Row]:
    """The last row of every head of a model under Gaussian noise."""
    rows: list[Row] = []
    for n in config.real_lengths:
        heads = real_heads(given, n, texts=1, seed=seed, rows=1)
        each = [_one(p, "gaussian 0.5", config.trials, rng, v) for p, v in map(_visible, heads)]
        rows.append({"row": "real", "n": n, **_quadratic_mean(each)})
    rows.append({"row": "real", "kind": "slope", **_slope(rows, "real")})
    return rows


def _visible(head: Head) -> tuple[Array, Array | None]:
    """Weights of the last row over the keys that it sees, and their values of variance 1."""
    s = head.logits[0, -1].double()
    seen = ~s.isneginf()
    p = entropy.softmax(s[seen].cpu().numpy())
    if head.values is None:
        return p, None
    v = head.values[0][seen].double()
    v = v - v.mean(0)
    return p, (v / v.square().mean().sqrt().clamp(min=1e-12)).cpu().numpy()


def conclude(results: RunResults) -> list[str]:
    """Compare the measured slopes with those of the theory.

    Args:
        results: rows of a run.
    """
    lines = []
    for row in ("flat", "peaked"):
        slopes = {
            law: results.over("slope", condition=law, row=row, kind="slope")
            for law in results.values("condition")
        }
        said = ", ".join(f"{s.mean:+.2f} ({law})" for law, s in slopes.items() if s.size)
        lines.append(
            f"In {row} rows the error of the output changes like n to the power of {said}."
        )
    ratios = [
        r["error"] / r["theory"]
        for r in results
        if r.get("theory") and r["n"] >= 256 and r["condition"] not in (SHARED, REAL)
    ]
    lines.append(
        f"From 256 keys on, where the noise has a variance, the measured error is "
        f"{min(ratios):.2f} to {max(ratios):.2f} times the predicted one, sqrt(rho sum p^2 (v - "
        "o)^2). So 1/sum p^2 decides, not n: the documents' 1/sqrt n holds for flat rows only."
    )
    against = results.mean("slope_n_eff", condition="gaussian 0.5", row="peaked", kind="slope")
    lines.append(
        f"The effective number of keys, n_eff = 1/sum p^2, does not decide alone: in peaked rows "
        f"the error changes like n_eff to the power of {against:.2f}, not -0.50 (gaussian 0.5). "
        "The output is then near the value v of the heaviest key, whose own noise hardly acts; the "
        "factor (v - o)^2 of the prediction accounts for it."
    )
    if len(results.where(condition=REAL, row="real")):
        lines.append(_said_of_real(results.where(condition=REAL)))
    lines.append(
        "Under Laplace noise above 1/2, where e^eps has no variance, the error falls more slowly "
        "than 1/sqrt n; above 1, where e^eps has no mean, it does not fall. Noise that all keys "
        "share changes nothing. Where noise and values both grow with the index of the key, a bias "
        "remains that no number of keys averages out."
    )
    return lines


def _said_of_real(real: RunResults) -> str:
    """How the heads of a model compare with the law."""
    ratios = [r["error"] / r["theory"] for r in real if r.get("theory")]
    slope = real.over("slope", kind="slope")
    lengths, n_eff = real.curve("n", "n_eff")
    return (
        f"Real heads, with their own values: the error changes like n to the power of "
        f"{slope.text(2)}, because n_eff hardly grows: {n_eff[0].mean:.1f} at {lengths[0]} keys, "
        f"{n_eff[-1].mean:.1f} at {lengths[-1]} (harmonic mean over heads). The measured error is "
        f"{min(ratios):.2f} to {max(ratios):.2f} times the predicted one."
    )


def conditions(config: NoiseConfig) -> Sequence[str]:
    """Laws of noise, and real heads where the embedded model is installed.

    Args:
        config: sizes of the experiment.
    """
    return [*config.laws, REAL] if has_embedded() else config.laws


def on(given: Given) -> Experiment:
    """This experiment with the real heads of a given model.

    Args:
        given: model, text and name.
    """
    return on_heads(
        EXPERIMENT, given, conditions=lambda config: [*config.laws, REAL], measure=measure
    )


EXPERIMENT = Experiment(
    name="noise",
    question="Noise on the scores: how much reaches the output, and does it fall like 1/sqrt n?",
    full=NoiseConfig(),
    quick=NoiseConfig(lengths=(16, 64, 256, 1024), trials=150, rows=4, real_lengths=(64, 128)),
    conditions=conditions,
    measure=measure,
    tables=(
        TableSpec("Exponent of error against n", "slope", ("condition",), "row", {"kind": "slope"}),
        TableSpec("Exponent of error against n_eff = 1/sum p^2", "slope_n_eff", ("condition",),
                  "row", {"kind": "slope"}),
        TableSpec("Error of the output", "error", ("condition", "row"), "n", digits=4),
        TableSpec("Predicted error", "theory", ("condition", "row"), "n", digits=4),
    ),
    figures=(
        FigureSpec("error", "Error of the output under noise on the scores", "n", "error",
                   "condition", panels="row", labels=("keys", "root mean square error"), log="xy",
                   theory="theory", where={"condition": (*LAWS, CORRELATED, BY_INDEX, REAL)}),
    ),
    conclude=conclude,
    on=on,
)  # fmt: skip
