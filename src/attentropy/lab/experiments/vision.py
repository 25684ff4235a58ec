"""extrapolate/vision: digits as sequences of pixels, trained at 8 x 8, tested at 16 x 16, 32 x 32.

Finer patches of the same picture repeat their neighbours: the keys are not more distractors, they
are copies, and copies of all keys do not change a softmax average. So here 1/sqrt d is the rule
that theory expects to be right, and rules that sharpen with n to be wrong.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attentropy.errors import AttentropyError
from attentropy.lab.experiment import Experiment, Figure, Row, Table
from attentropy.lab.rows import Results
from attentropy.lab.small_model import Stack, held, set_scales, spreads
from attentropy.nn.multihead import MultiheadAttention
from attentropy.scales import LogLengthFrom, Mixed, PowerLength, ScaleRule
from attentropy.types import Stats

SIDE = 8
PLAIN, LOG = "1/sqrt d", "1/sqrt d, log n at test"
TRAINED = {PLAIN: None, "mixed": None, "QK-norm": "rms"}


@dataclass(frozen=True)
class Config:
    """Sides of the pictures in the test; 8 is that of training."""

    sides: tuple[int, ...] = (8, 16, 32)
    width: int = 32
    heads: int = 4
    layers: int = 2
    steps: int = 400
    batch: int = 64
    rate: float = 3e-3
    tested: int = 80
    trained: tuple[str, ...] = tuple(TRAINED)


class PixelModel(nn.Module):
    """Pixels [B,side,side] as tokens of grey value and place -> logits of ten digits."""

    def __init__(self, config: Config, scale: ScaleRule | None, qk_norm: str | None) -> None:
        super().__init__()
        self.embedding = nn.Linear(1 + 4 * 4, config.width)
        self.stack = Stack(
            config.width,
            config.layers,
            lambda: MultiheadAttention(config.width, config.heads, scale=scale, qk_norm=qk_norm),
        )
        self.head = nn.Linear(config.width, 10)

    def forward(self, pixels: Tensor) -> tuple[Tensor, list[Stats]]:
        """Logits, and the statistics of every layer."""
        side = pixels.shape[-1]
        place = _places(side).expand(len(pixels), -1, -1)
        x = torch.cat([pixels.flatten(1)[..., None], place], -1)
        x, stats = self.stack(self.embedding(x))
        return self.head(x.mean(1)), stats


def _places(side: int) -> Tensor:
    """Waves of the coordinates in the unit square, [side^2, 16]: the same at every resolution."""
    at = (torch.arange(side) + 0.5) / side
    grid = torch.stack(torch.meshgrid(at, at, indexing="ij"), -1).flatten(0, 1)
    angle = grid[..., None] * torch.pi * 2.0 ** torch.arange(4)
    return torch.cat([angle.sin(), angle.cos()], -1).flatten(1)


def digits() -> tuple[Tensor, Tensor]:
    """scikit-learn's 1797 pictures in [0, 1], and their digits, in a fixed random order."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise AttentropyError(
            "extrapolate/vision needs scikit-learn: install attentropy[lab]"
        ) from None
    data = load_digits()
    order = torch.randperm(len(data.target), generator=torch.Generator().manual_seed(0))
    pictures = torch.tensor(data.images, dtype=torch.float32) / 16
    return pictures[order], torch.tensor(data.target)[order]


def measure(config: Config, condition: str, seed: int) -> list[Row]:
    """Train at 8 x 8 with one rule, test at every side with it and with rules of the test."""
    rng = torch.Generator().manual_seed(seed)
    pictures, target = digits()
    scale = Mixed() if condition == "mixed" else None
    model = PixelModel(config, scale, TRAINED[condition])
    held_out = len(target) - 297
    optimiser = torch.optim.AdamW(model.parameters(), config.rate)
    plan = torch.optim.lr_scheduler.OneCycleLR(optimiser, config.rate, config.steps, pct_start=0.1)
    for _ in range(config.steps):
        chosen = torch.randint(held_out, (config.batch,), generator=rng)
        optimiser.zero_grad()
        F.cross_entropy(model(pictures[chosen])[0], target[chosen]).backward()
        optimiser.step()
        plan.step()
    return _tested(model.eval(), condition, config, pictures[held_out:], target[held_out:])


@torch.no_grad()
def _tested(
    model: PixelModel, condition: str, config: Config, pictures: Tensor, target: Tensor
) -> list[Row]:
    n0, layers = SIDE**2, model.stack.attentions
    plan = held(spreads(model, layers, pictures[:64]), n0)
    rules: dict[str, list] = {condition: [layer.scale for layer in layers]}
    if condition != "mixed":
        rules[f"{condition}, log n at test"] = [LogLengthFrom(n0)] * len(layers)
        rules[f"{condition}, calibrated at test"] = plan
        rules[f"{condition}, n^(1/2) at test"] = [PowerLength(0.5, n0)] * len(layers)
    rows: list[Row] = []
    for side in config.sides:
        shown = F.interpolate(pictures[: config.tested, None], (side, side), mode="bilinear")[:, 0]
        for name, scales in rules.items():
            set_scales(layers, scales)
            logits, stats = model(shown)
            right = (logits.argmax(-1) == target[: config.tested]).float().mean().item()
            entropy = torch.stack([s.entropy.mean() for s in stats if s.entropy is not None])
            rows.append({"rule": name, "patches": side**2, "accuracy": 100 * right,
                         "entropy": entropy.mean().item()})  # fmt: skip
    return rows


def conclude(results: Results) -> list[str]:
    """What more patches cost, whether sharpening helps, and how far the entropy rises."""
    near, far = min(results.values("patches")), max(results.values("patches"))
    level = {r: results.mean("accuracy", rule=r, patches=far) for r in results.values("rule")}
    first, log = results.mean("accuracy", rule=PLAIN, patches=near), level[LOG]
    best = max(level, key=level.__getitem__)
    rise = results.mean("entropy", rule=PLAIN, patches=far) - results.mean(
        "entropy", rule=PLAIN, patches=near
    )
    return [
        f"With 1/sqrt d accuracy goes from {first:.1f} % at {near} patches to {level[PLAIN]:.1f} % "
        f"at {far}; with log n at test time {log:.1f} %. Best at {far}: {best}, "
        f"{level[best]:.1f} %.",
        "Theory: finer patches are near copies of the same keys. Copying all keys leaves every "
        f"softmax average as it is and raises the entropy by {math.log(far / near):.2f} nats from "
        f"{near} to {far} (measured: {rise:+.2f}), which is no loss of focus: holding the entropy "
        "need not be the aim here.",
        f"Accuracy is lost under every rule (perhaps because interpolated pixels "
        f"look like nothing in training; not tested); "
        f"log n differs from 1/sqrt d by {log - level[PLAIN]:+.1f} points, with a standard "
        f"deviation over seeds of {results.over('accuracy', rule=LOG, patches=far).sd:.1f}.",
    ]


def conditions(config: Config) -> Sequence[str]:
    """What is trained."""
    return config.trained


EXPERIMENT = Experiment(
    name="extrapolate/vision",
    question="Digits at 4 and 16 times the patches of training: must attention sharpen?",
    full=Config(),
    quick=Config(sides=(8, 16), layers=1, steps=150, tested=64, trained=("1/sqrt d",)),
    conditions=conditions,
    measure=measure,
    tables=(
        Table("Accuracy, %", "accuracy", ("rule",), "patches", digits=1),
        Table("Entropy, nats", "entropy", ("rule",), "patches"),
    ),
    figures=(
        Figure("accuracy", "Digits at finer resolution than trained", "patches", "accuracy", "rule",
               labels=("patches", "accuracy, %"), log="x", chance=10.0),
    ),
    conclude=conclude,
)  # fmt: skip
