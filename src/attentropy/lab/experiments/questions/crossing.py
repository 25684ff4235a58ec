"""crossing: entropy in encoder, decoder and between them; words to words, and words to image."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attentropy.core.masks import causal
from attentropy.core.results import Stats
from attentropy.lab.harness.experiment import Experiment, FigureSpec, Row, TableSpec
from attentropy.lab.harness.results import Estimate, RunResults
from attentropy.lab.subjects.small_model import Stack
from attentropy.nn.layers.multihead import MultiheadAttention
from attentropy.nn.positions.encodings import SinusoidalPositions

WORDS, IMAGE = "words to words", "words to image"
PLACES = ("encoder", "decoder", "crossing")


@dataclass(frozen=True)
class CrossingConfig:
    """Translation: the words in reverse order, renamed. Image: what is at the places asked for."""

    length: int = 12
    vocabulary: int = 24
    width: int = 48
    heads: int = 4
    layers: int = 2
    steps: int = 600
    batch: int = 64
    rate: float = 3e-3
    features: int = 16
    noise: float = 0.3
    every: int = 100


class Crossed(nn.Module):
    """An encoder of words or patches, and one decoder block of words that attends to it."""

    def __init__(self, config: CrossingConfig, *, image: bool) -> None:
        super().__init__()
        width, heads = config.width, config.heads
        self.source: nn.Module = (
            nn.Linear(config.features, width)
            if image
            else nn.Embedding(config.vocabulary + 1, width)
        )
        self.target = nn.Embedding(config.vocabulary + 1, width)
        self.places = SinusoidalPositions()
        self.encoder = Stack(width, config.layers, lambda: MultiheadAttention(width, heads))
        self.own = MultiheadAttention(width, heads, mask=causal)
        self.cross = MultiheadAttention(width, heads)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.read = nn.Linear(width, config.vocabulary + 1)

    def forward(self, source: Tensor, target: Tensor) -> tuple[Tensor, dict[str, list[Stats]]]:
        """Logits of the next words, and the statistics of each place.

        Args:
            source: ids [B,N] or patches [B,N,features].
            target: ids [B,M] of the words before.
        """
        memory, seen = self.encoder(self.places(self.source(source)))
        x = self.places(self.target(target))
        own, first = self.own(self.norms[0](x))
        x = x + own
        crossed, second = self.cross(self.norms[1](x), memory)
        logits = self.read(self.norms[2](x + crossed))
        return logits, {"encoder": seen, "decoder": [first], "crossing": [second]}


class Pairs:
    """Pairs of a source and the words to say, drawn from one seed."""

    def __init__(self, config: CrossingConfig, *, image: bool, seed: int) -> None:
        self.config, self.image = config, image
        self.rng = torch.Generator().manual_seed(seed)
        self.renamed = torch.randperm(config.vocabulary, generator=self.rng)
        self.look = torch.randn(config.vocabulary, config.features, generator=self.rng)

    def draw(self) -> tuple[Tensor, Tensor, Tensor]:
        """Source, words before (a start word first), and the words that follow."""
        c = self.config
        words = torch.randint(c.vocabulary, (c.batch, c.length), generator=self.rng)
        said = self.renamed[words.flip(1)]
        source = words
        if self.image:
            eps = torch.randn(c.batch, c.length, c.features, generator=self.rng)
            source = self.look[words] + c.noise * eps
        start = torch.full((c.batch, 1), c.vocabulary)
        return source, torch.cat([start, said[:, :-1]], 1), said


def measure(config: CrossingConfig, condition: str, seed: int) -> list[Row]:
    """Normalised entropy of each place while the model learns.

    Args:
        config: sizes of the experiment.
        condition: one of conditions(config).
        seed: of the random numbers.
    """
    torch.manual_seed(seed)
    image = condition == IMAGE
    model, task = Crossed(config, image=image), Pairs(config, image=image, seed=seed)
    optimiser = torch.optim.Adam(model.parameters(), config.rate)
    rows: list[Row] = []
    for step in range(config.steps + 1):
        source, before, said = task.draw()
        logits, seen = model(source, before)
        if step % config.every == 0:
            right = 100 * (logits.argmax(-1) == said).float().mean().item()
            rows += [
                {"place": place, "step": step, "share": _share(seen[place]), "right": right}
                for place in PLACES
            ]
        optimiser.zero_grad()
        F.cross_entropy(logits.flatten(0, 1), said.flatten()).backward()
        optimiser.step()
    return rows


def _share(stats: list[Stats]) -> float:
    """H / log n, mean over layers, heads and rows that had a choice."""
    found = [one.normalized_entropy for one in stats]
    return torch.stack([x.nanmean() for x in found if x is not None]).mean().item()


def conclude(results: RunResults) -> list[str]:
    """Compare the places at the end of training.

    Args:
        results: rows of a run.
    """
    lines = []
    for condition in results.values("condition"):
        chosen = results.where(condition=condition, step=max(results.values("step")))
        shares = {place: chosen.over("share", place=place) for place in PLACES}
        said = ", ".join(f"{share.text(2)} in the {place}" for place, share in shares.items())
        lines.append(
            f"{condition}: after training H / log n is {said}; {chosen.mean('right'):.0f} % of the "
            f"words are right. {_compared(shares)}"
        )
    return lines


def _compared(shares: dict[str, Estimate]) -> str:
    """Decoder against encoder, with two standard errors of the difference."""
    above = shares["decoder"].mean - shares["encoder"].mean
    error = math.hypot(shares["decoder"].sd, shares["encoder"].sd) / shares["decoder"].size ** 0.5
    if not abs(above) > 2 * error:
        found = f"{above:+.2f} ± {error:.2f}"
        return f"Decoder and encoder do not differ by two standard errors ({found})."
    word = "lower" if above < 0 else "higher"
    return f"The decoder is {word} than the encoder ({above:+.2f} ± {error:.2f})."


def conditions(config: CrossingConfig) -> Sequence[str]:
    """What the words attend to.

    Args:
        config: sizes of the experiment.
    """
    return (WORDS, IMAGE)


EXPERIMENT = Experiment(
    name="crossing",
    question="Is entropy lower in the decoder than in the encoder, and across modalities?",
    full=CrossingConfig(),
    quick=CrossingConfig(steps=100, every=50),
    conditions=conditions,
    measure=measure,
    tables=(
        TableSpec("H / log n", "share", ("condition", "place"), "step"),
        TableSpec("Right words, %", "right", ("condition",), "step", {"place": "crossing"}, 1),
    ),
    figures=(
        FigureSpec("share", "Entropy while a model learns to translate or to describe", "step",
                   "share", "place", panels="condition", labels=("step", "H / log n")),
    ),
    conclude=conclude,
)  # fmt: skip
