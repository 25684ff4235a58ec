"""weightings: noise on the scores with weights other than softmax, and a bias on the keys."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attentropy.attention.attend import attend
from attentropy.core.weights import (
    L1,
    L2,
    Entmax,
    Linear,
    ReluSquared,
    Sigmoid,
    Softmax,
    Sparsemax,
    Weights,
)
from attentropy.lab.harness.experiment import Experiment, FigureSpec, Row, TableSpec
from attentropy.lab.harness.results import RunResults

NOISE, BIAS = "noise on the scores", "bias on the keys"


@dataclass(frozen=True)
class WeightingsConfig:
    """Random queries, keys and values; noise of standard deviation `noise` on unit scores."""

    lengths: tuple[int, ...] = (16, 64, 256, 1024)
    noise: float = 0.5
    width: int = 32
    rows: int = 256
    keys: int = 256  # in the test of the bias
    biases: tuple[float, ...] = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0)


def kinds(n: int) -> dict[str, Weights]:
    """Weights that are compared.

    Args:
        n: number of keys.
    """
    return {
        "softmax": Softmax(),
        "entmax 1.5": Entmax(1.5),
        "sparsemax": Sparsemax(),
        "sigmoid": Sigmoid(bias=-math.log(n)),
        "relu squared": ReluSquared(),
        "L1 of relu squared": L1(ReluSquared()),
        "L2 of relu squared": L2(ReluSquared()),
        "L1 of linear": L1(Linear()),
        "L2 of linear": L2(Linear()),
    }


def measure(config: WeightingsConfig, condition: str, seed: int) -> list[Row]:
    """Errors under noise by weighting and length, or what a bias on keys does.

    Args:
        config: sizes of the experiment.
        condition: one of conditions(config).
        seed: of the random numbers.
    """
    rng = torch.Generator().manual_seed(seed)
    return _noise(config, rng) if condition == NOISE else _bias(config, rng)


def _noise(config: WeightingsConfig, rng: torch.Generator) -> list[Row]:
    rows: list[Row] = []
    for n in config.lengths:
        q = torch.randn(1, 1, config.rows, config.width, generator=rng)
        k, v = (torch.randn(1, 1, n, config.width, generator=rng) for _ in range(2))
        eps = config.noise * torch.randn(1, 1, config.rows, n, generator=rng)
        for name, weights in kinds(n).items():
            clean = attend(q, k, v, weights=weights).out
            noisy = attend(q, k, v, weights=weights, bias=eps).out
            rows.append({"weights": name, "n": n, "error": _relative(noisy, clean)})
    return rows


def _relative(noisy: Tensor, clean: Tensor) -> float:
    """Root mean square of the change over that of the output."""
    return ((noisy - clean).square().mean() / clean.square().mean()).sqrt().item()


def _bias(config: WeightingsConfig, rng: torch.Generator) -> list[Row]:
    """Queries share a direction u; a bias of -t u on every key lowers all scores alike."""
    width, n = config.width, config.keys
    u = torch.nn.functional.normalize(torch.randn(width, generator=rng), dim=0)
    k, v = (torch.randn(1, 1, n, width, generator=rng) for _ in range(2))
    asked = torch.randint(n, (config.rows,), generator=rng)
    q = k[:, :, asked] + 0.35 * torch.randn(1, 1, config.rows, width, generator=rng)
    q = q + width**0.5 * u
    rows: list[Row] = []
    for size in config.biases:
        for name, weights in (("softmax", Softmax()), ("relu squared", L1(ReluSquared()))):
            out, stats = attend(q, k - size * u, v, weights=weights)
            found = ((out @ v.mT)[0, 0].argmax(-1) == asked).float().mean().item()
            sparse = stats.sparsity.nanmean().item()
            rows.append({"weights": name, "bias": size, "found": 100 * found, "S": sparse})
    return rows


def conclude(results: RunResults) -> list[str]:
    """Say which weights pass on the least noise, and what the bias does.

    Args:
        results: rows of a run.
    """
    lines = []
    noisy = results.where(condition=NOISE)
    if len(noisy):
        far = max(noisy.values("n"))
        errors = {w: noisy.mean("error", weights=w, n=far) for w in noisy.values("weights")}
        order = sorted(errors, key=lambda name: errors[name])
        said = ", ".join(f"{errors[name]:.2f} ({name})" for name in order)
        lines.append(
            f"At {far} keys the noise changes the output by these shares of its size, least "
            f"first: {said}."
        )
        near = min(noisy.values("n"))
        lines.append(
            f"Normalising helps relu squared: {errors['L1 of relu squared']:.2f} by L1, "
            f"{errors['L2 of relu squared']:.2f} by L2, {errors['relu squared']:.2f} without. "
            f"Linear weights by L1 have {errors['L1 of linear']:.2f} where softmax has "
            f"{errors['softmax']:.2f}; at {near} keys it is "
            f"{noisy.mean('error', weights='L1 of linear', n=near):.2f} against "
            f"{noisy.mean('error', weights='softmax', n=near):.2f}. Sparse weights change most, "
            "because noise moves keys over the threshold."
        )
    biased = results.where(condition=BIAS)
    if len(biased):
        for name in biased.values("weights"):
            sizes, found = biased.where(weights=name).curve("bias", "found")
            best = max(range(len(sizes)), key=lambda i: found[i].mean)
            lines.append(
                f"{name} finds the key in {found[0].text(0)} % of the rows without a bias on the "
                f"keys, and in {found[best].text(0)} % with the best bias tried, {sizes[best]:g}."
            )
    return lines


def conditions(config: WeightingsConfig) -> Sequence[str]:
    """The two questions.

    Args:
        config: sizes of the experiment.
    """
    return (NOISE, BIAS)


EXPERIMENT = Experiment(
    name="weightings",
    question="Are L1 and other weights more robust than softmax, and does relu^2 need a key bias?",
    full=WeightingsConfig(),
    quick=WeightingsConfig(lengths=(16, 128), rows=64, biases=(0.0, 1.0, 2.0)),
    conditions=conditions,
    measure=measure,
    tables=(
        TableSpec("Change of the output over its size", "error", ("weights",), "n",
                  {"condition": NOISE}, 3),
        TableSpec("Found, %, by the bias on the keys", "found", ("weights",), "bias",
                  {"condition": BIAS}, 1),
        TableSpec("S by the bias on the keys", "S", ("weights",), "bias", {"condition": BIAS}, 3),
    ),
    figures=(
        FigureSpec("noise", "Change of the output under noise on the scores", "n", "error",
                   "weights", where={"condition": NOISE}, log="xy",
                   labels=("keys", "change over size")),
        FigureSpec("bias", "Finding a key with a bias on all keys", "bias", "found", "weights",
                   where={"condition": BIAS}, labels=("bias against the queries", "found, %")),
    ),
    conclude=conclude,
)  # fmt: skip
