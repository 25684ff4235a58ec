"""extrapolate/vision: digits as sequences of pixels, trained at 8 x 8, tested at 16 x 16, 32 x 32.

Finer patches of the same picture repeat their neighbours: the keys are not more distractors, they
are copies, and copies of all keys do not change a softmax average. So here 1/sqrt d is the rule
that theory expects to be right, and rules that sharpen with n to be wrong. Three ways to make a
finer picture tell what goes wrong: "bilinear" has grey values and places between those of
training, "copied" only the places, "copied with places" neither: every token is there 4 or 16
times.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attentropy.core.errors import AttentropyError
from attentropy.core.results import Stats
from attentropy.core.scales import LogLengthFrom, Mixed, PowerLength, ScaleRule
from attentropy.lab.harness.experiment import Experiment, FigureSpec, Row, TableSpec
from attentropy.lab.harness.gains import gain
from attentropy.lab.harness.results import RunResults
from attentropy.lab.subjects.byte_models import KeyNorm
from attentropy.lab.subjects.calibrated_scales import calibrated
from attentropy.lab.subjects.small_model import Stack, set_scales
from attentropy.nn.layers.multihead import MultiheadAttention
from attentropy.nn.norms import QKNorm

SIDE = 8
PLAIN, LOG = "1/sqrt d", "1/sqrt d, log n at test"
TRAINED = (PLAIN, "mixed 1", "KeyNorm", "QK-norm")
BILINEAR, COPIED, EXACT = "bilinear", "copied", "copied with places"


@dataclass(frozen=True)
class VisionConfig:
    """Sides of the pictures in the test; 8 is that of training."""

    sides: tuple[int, ...] = (8, 16, 32)
    width: int = 32
    heads: int = 4
    layers: int = 2
    steps: int = 300
    batch: int = 64
    rate: float = 3e-3
    tested: int = 100
    trained: tuple[str, ...] = TRAINED


class PixelModel(nn.Module):
    """Pixels [B,side,side] as tokens of grey value and place -> logits of ten digits."""

    def __init__(self, config: VisionConfig, rule: str) -> None:
        super().__init__()
        self.embedding = nn.Linear(1 + 4 * 4, config.width)
        self.stack = Stack(config.width, config.layers, lambda: _attention(config, rule))
        self.head = nn.Linear(config.width, 10)

    def forward(self, pixels: Tensor, *, known: bool = False) -> tuple[Tensor, list[Stats]]:
        """Logits of the ten digits, and the statistics of every layer.

        Args:
            pixels: [B,side,side].
            known: gives tokens the places of the training resolution only.
        """
        side = pixels.shape[-1]
        places = repeated(_places(SIDE), side) if known else _places(side)
        x = torch.cat([pixels[..., None], places.expand(len(pixels), -1, -1, -1)], -1).flatten(1, 2)
        x, stats = self.stack(self.embedding(x))
        return self.head(x.mean(1)), stats


def _attention(config: VisionConfig, rule: str) -> MultiheadAttention:
    """A layer with the scale or the norm of a rule."""
    norms = {"KeyNorm": KeyNorm, "QK-norm": QKNorm}
    norm = norms[rule](config.width // config.heads) if rule in norms else None
    scale: ScaleRule | None = None
    if rule.startswith("mixed "):
        scale = Mixed(beta=float(rule.removeprefix("mixed ")))
    return MultiheadAttention(config.width, config.heads, scale=scale, qk_norm=norm)


def finer(pictures: Tensor, side: int, made: str = BILINEAR) -> Tensor:
    """Pictures [B,8,8] as [B,side,side].

    Args:
        pictures: [B,8,8].
        side: multiple of 8.
        made: BILINEAR, COPIED or EXACT.
    """
    if made != BILINEAR:
        return repeated(pictures[..., None], side)[..., 0]
    return F.interpolate(pictures[:, None], (side, side), mode="bilinear")[:, 0]


def repeated(grid: Tensor, side: int) -> Tensor:
    """[...,8,8,C] as [...,side,side,C], each entry side/8 times in both directions.

    Args:
        grid: [...,8,8,C].
        side: multiple of 8.
    """
    times = side // grid.shape[-2]
    return grid.repeat_interleave(times, -2).repeat_interleave(times, -3)


class AtLength(nn.Module):
    """The model for calibrate(), which cuts a batch to n columns: here n says the resolution."""

    def __init__(self, model: PixelModel, pictures: Tensor) -> None:
        super().__init__()
        self.model, self.pictures = model, pictures

    def forward(self, which: Tensor) -> tuple[Tensor, list[Stats]]:
        """Answers to some pictures, shown as n pixels each.

        Args:
            which: numbers of the pictures, [B,n].
        """
        side = math.isqrt(which.shape[1])
        logits: tuple[Tensor, list[Stats]] = self.model(finer(self.pictures[which[:, 0]], side))
        return logits


def _places(side: int) -> Tensor:
    """Waves of the coordinates in the unit square, [side,side,16]: the same at every resolution."""
    at = (torch.arange(side) + 0.5) / side
    grid = torch.stack(torch.meshgrid(at, at, indexing="ij"), -1)
    angle = grid[..., None] * torch.pi * 2.0 ** torch.arange(4)
    return torch.cat([angle.sin(), angle.cos()], -1).flatten(2)


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


def measure(config: VisionConfig, condition: str, seed: int) -> list[Row]:
    """Train at 8 x 8 with one rule, test at every side with it and with rules of the test.

    Args:
        config: sizes of the experiment.
        condition: one of conditions(config).
        seed: of the random numbers.
    """
    rng = torch.Generator().manual_seed(seed)
    pictures, target = digits()
    model = PixelModel(config, condition)
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
    model: PixelModel, condition: str, config: VisionConfig, pictures: Tensor, target: Tensor
) -> list[Row]:
    rows: list[Row] = []
    layers = model.stack.attentions
    rules = _rules(model, condition, config, pictures)
    for side in config.sides:
        for made in (BILINEAR, COPIED, EXACT) if condition == PLAIN else (BILINEAR,):
            shown = finer(pictures[: config.tested], side, made)
            for name, scales in rules.items():
                if made != BILINEAR and name not in (PLAIN, LOG):
                    continue
                set_scales(layers, scales)
                found = _judged(model, shown, target[: config.tested], known=made == EXACT)
                rows.append({"rule": name, "made": made, "patches": side**2, **found})
    return rows


def _rules(
    model: PixelModel, condition: str, config: VisionConfig, pictures: Tensor
) -> dict[str, list]:
    """Scales of training, and scales of the test if the model was trained with 1/sqrt d."""
    n0, layers = SIDE**2, model.stack.attentions
    rules: dict[str, list] = {condition: [layer.scale for layer in layers]}
    if not condition.startswith("mixed"):
        which = torch.arange(16)[:, None].expand(-1, max(config.sides) ** 2)
        lengths = [side**2 for side in config.sides]
        plan = calibrated(AtLength(model, pictures[-16:]), which, lengths)
        rules[f"{condition}, log n at test"] = [LogLengthFrom(n0)] * len(layers)
        rules[f"{condition}, calibrated at test"] = list(plan)
        rules[f"{condition}, n^(1/2) at test"] = [PowerLength(0.5, n0)] * len(layers)
    return rules


def _judged(model: PixelModel, shown: Tensor, target: Tensor, *, known: bool) -> Row:
    parts = [model(part, known=known) for part in shown.split(max(1, 16384 // shown[0].numel()))]
    logits = torch.cat([logits for logits, _ in parts])
    right = (logits.argmax(-1) == target).float().mean().item()
    seen = [stats.entropy for _, each in parts for stats in each]
    entropy = torch.cat([x.mean((1, 2)) for x in seen if x is not None])
    return {
        "accuracy": 100 * right,
        "loss": F.cross_entropy(logits, target).item(),
        "entropy": entropy.mean().item(),
    }


def conclude(results: RunResults) -> list[str]:
    """Say what more patches cost, whether sharpening helps, and how far the entropy rises.

    Args:
        results: rows of a run.
    """
    near, far = min(results.values("patches")), max(results.values("patches"))
    there = results.where(patches=far)
    home = results.mean("accuracy", rule=PLAIN, made=BILINEAR, patches=near)
    drawn = there.where(made=BILINEAR)
    level = {rule: drawn.mean("accuracy", rule=rule) for rule in drawn.values("rule")}
    best = max(level, key=level.__getitem__)
    lines = [
        f"1/sqrt d answers {home:.1f} % right at {near} patches. At {far} patches drawn by "
        f"bilinear interpolation {best} is best, with {level[best]:.1f} %."
    ]
    for made in there.values("made"):
        log = gain(there, "accuracy", rule=LOG, over=PLAIN, made=made)
        lines.append(
            f"{far} patches, {made}: 1/sqrt d answers "
            f"{there.mean('accuracy', rule=PLAIN, made=made):.1f} % right; log n at test time "
            f"changes that by {log.text()} points, paired over {log.spread.size} seeds "
            f"({log.verdict})."
        )
    here, rise = (results.mean("entropy", made=EXACT, rule=PLAIN, patches=n) for n in (near, far))
    return [
        *lines,
        "Theory: copying all keys leaves every softmax average as it is and raises the entropy by "
        f"log({far // near}) = {math.log(far / near):.2f} nats (measured: {rise - here:+.2f}), "
        "which is not a loss of focus: with places copied too, 1/sqrt d answers as at the trained "
        "length, and rules that hold the entropy move away from it. What the other pictures lose "
        "under 1/sqrt d they lose to grey values and places that training never showed, not to the "
        "number of keys.",
    ]


def conditions(config: VisionConfig) -> Sequence[str]:
    """Rules of training.

    Args:
        config: sizes of the experiment.
    """
    return config.trained


EXPERIMENT = Experiment(
    name="extrapolate/vision",
    question="Digits at 4 and 16 times the patches of training: must attention sharpen?",
    full=VisionConfig(),
    quick=VisionConfig(sides=(8, 16), layers=1, steps=150, tested=64, trained=(PLAIN,)),
    conditions=conditions,
    measure=measure,
    tables=(
        TableSpec("Accuracy, %", "accuracy", ("made", "rule"), "patches", digits=1),
        TableSpec("Loss, nats", "loss", ("made", "rule"), "patches"),
        TableSpec("Entropy, nats", "entropy", ("made", "rule"), "patches"),
    ),
    figures=(
        FigureSpec("accuracy", "Digits at finer resolution than trained", "patches", "accuracy",
                   "rule", panels="made", labels=("patches", "accuracy, %"), log="x", chance=10.0),
    ),
    conclude=conclude,
)  # fmt: skip
