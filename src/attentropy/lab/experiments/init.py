"""init: entropy, gradients and trainability at the start, by initialisation, width and scaling."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from attentropy.attention.attend import attend
from attentropy.lab.harness.experiment import Experiment, FigureSpec, Row, TableSpec
from attentropy.lab.harness.results import RunResults
from attentropy.nn.init import expected_entropy, logit_spread, score_variance, xavier
from attentropy.nn.layers.multihead import MultiheadAttention
from attentropy.theory.init import weight_variance

SCHEMES = ("xavier", "lecun", "he", "gpt2", "packed")


@dataclass(frozen=True)
class InitConfig:
    """Schemes are measured at every d_k, with and without 1/sqrt d; `spreads` are trained from."""

    d_model: int = 256
    head_dims: tuple[int, ...] = (16, 64, 256)
    length: int = 128
    spreads: tuple[float, ...] = (0.1, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
    train_width: int = 32
    train_items: int = 16
    steps: int = 400
    batch: int = 64


def measure(config: InitConfig, condition: str, seed: int) -> list[Row]:
    """One scheme at every d_k, or training from every spread.

    Args:
        config: sizes of the experiment.
        condition: one of conditions(config).
        seed: of the random numbers.
    """
    if condition != "spread":
        return [
            _scheme(config, condition, d, scaled)
            for d in config.head_dims
            for scaled in (True, False)
        ]
    return [_trained(config, spread, seed) for spread in config.spreads]


def _scheme(config: InitConfig, scheme: str, d_k: int, scaled: bool) -> Row:
    """Entropy and gradients of a fresh layer on inputs N(0, 1)."""
    layer = MultiheadAttention(
        config.d_model, config.d_model // d_k, scale=None if scaled else 1.0, init=xavier
    )
    deviation = math.sqrt(weight_variance(scheme, config.d_model, d_k))
    with torch.no_grad():
        for weight in (layer.q_weight, layer.k_weight):
            weight.normal_(0, deviation)
    x = torch.randn(2, config.length, config.d_model)
    row = {"scheme": scheme, "d_k": d_k, "scale": "1/sqrt d" if scaled else "1"}
    with torch.no_grad():
        theory = expected_entropy(layer, config.length).mean().item()
        spread = logit_spread(layer, config.length).mean().item()
    return {**row, "spread": spread, "theory": theory, **_fresh(layer, x)}


def _fresh(layer: MultiheadAttention, x: Tensor) -> Row:
    out, stats = layer(x)
    (out * torch.randn_like(out)).mean().backward()
    grad = layer.in_proj_weight.grad
    assert grad is not None
    assert stats.entropy is not None
    queries, keys, values = (g.norm().item() for g in grad.chunk(3))
    return {
        "entropy": stats.entropy.mean().item(),
        "gradient": math.hypot(queries, keys) / values,
        "flow": stats.gradient_flow.mean().item(),
    }


def _trained(config: InitConfig, spread: float, seed: int) -> Row:
    """Accuracy of looking a noisy key up among others, from projections of this score spread."""
    rng = torch.Generator().manual_seed(seed)
    width = config.train_width
    layer = MultiheadAttention(width, 1, init=score_variance(spread**2))
    weights = [layer.q_weight.detach().clone(), layer.k_weight.detach().clone()]
    w_q, w_k = (w.requires_grad_() for w in weights)
    optimiser = torch.optim.Adam([w_q, w_k], 3e-3)
    accuracy, first = 0.0, math.nan
    for step in range(config.steps):
        q, k, asked = _lookup(config, rng)
        v = torch.eye(config.train_items).expand(len(q), 1, -1, -1)
        out, stats = attend((q @ w_q.T)[:, None], (k @ w_k.T)[:, None], v)
        p = out[:, 0, 0].clamp(min=1e-9)
        loss = F.nll_loss(p.log(), asked)
        optimiser.zero_grad()
        loss.backward()
        if step == 0:
            first = sum(w.grad.norm().item() for w in (w_q, w_k) if w.grad is not None)
            entropy = stats.entropy.mean().item()  # type: ignore[union-attr]
        optimiser.step()
        if step >= config.steps - 10:
            accuracy += 10 * (p.argmax(-1) == asked).float().mean().item()
    return {"start": spread, "entropy": entropy, "accuracy": accuracy, "gradient": first,
            "loss": loss.item()}  # fmt: skip


def _lookup(config: InitConfig, rng: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Noisy queries [B,1,d], keys [B,n,d] and the index of the key that is asked for."""
    k = torch.randn(config.batch, config.train_items, config.train_width, generator=rng)
    asked = torch.randint(config.train_items, (config.batch,), generator=rng)
    q = k[torch.arange(config.batch), asked][:, None]
    return q + 0.5 * torch.randn(q.shape, generator=rng), k, asked


def conclude(results: RunResults) -> list[str]:
    """Say how entropy, gradient and the result of training depend on the start.

    Args:
        results: rows of a run.
    """
    fresh = results.where(condition=SCHEMES)
    off = max(abs(r["entropy"] - r["theory"]) for r in fresh if r["scale"] == "1/sqrt d")
    wide = max(fresh.values("d_k"))
    scaled, raw = (
        fresh.mean("entropy", scheme="xavier", d_k=wide, scale=s) for s in ("1/sqrt d", "1")
    )
    lines = [
        f"Entropy at initialisation agrees with the Gaussian theory to {off:.2f} nats "
        "(with 1/sqrt d).",
        f"Without 1/sqrt d, xavier rows at d_k = {wide} have {raw:.2f} nats instead of "
        f"{scaled:.2f}: saturated from the start.",
    ]
    trained = results.where(condition="spread")
    level = {s: trained.mean("accuracy", start=s) for s in trained.values("start")}
    best = max(level, key=lambda s: level[s])
    gradient = {s: trained.mean("gradient", start=s) for s in level}
    strongest = max(gradient, key=lambda s: gradient[s])
    lines.append(
        f"Training from a score spread of {best:g} ends best ({level[best]:.1f} %); training from "
        f"the smallest spread ends at {level[min(level)]:.1f} %, from the largest at "
        f"{level[max(level)]:.1f} %. The first gradient is largest at spread {strongest:g}."
    )
    return lines


def conditions(config: InitConfig) -> Sequence[str]:
    """Schemes of initialisation, and training from a given spread.

    Args:
        config: sizes of the experiment.
    """
    return (*SCHEMES, "spread")


EXPERIMENT = Experiment(
    name="init",
    question="Entropy, gradients and trainability at initialisation: "
    "what do spread, d_k and scaling do?",
    full=InitConfig(),
    quick=InitConfig(d_model=64, head_dims=(16, 64), length=64, spreads=(0.1, 1.0, 8.0), steps=60),
    conditions=conditions,
    measure=measure,
    tables=(
        TableSpec("Entropy at initialisation, nats", "entropy", ("scheme", "scale"), "d_k"),
        TableSpec("Entropy that theory expects", "theory", ("scheme", "scale"), "d_k"),
        TableSpec("Gradient of q and k over that of v", "gradient", ("scheme", "scale"), "d_k",
                  {"condition": SCHEMES}, 3),
        TableSpec("Accuracy after training, %", "accuracy", ("condition",), "start", digits=1),
        TableSpec("Norm of the first gradient", "gradient", ("condition",), "start",
                  {"condition": "spread"}, 3),
    ),
    figures=(
        FigureSpec("entropy", "First entropy by width of heads", "d_k", "entropy", "scheme",
                   panels="scale", labels=("d_k", "entropy, nats"), log="x", theory="theory"),
        FigureSpec("training", "Accuracy after training from a given spread of scores", "start",
                   "accuracy", "condition", labels=("spread of the scores at first", "accuracy, %"),
                   log="x", where={"condition": "spread"}),
    ),
    conclude=conclude,
)  # fmt: skip
