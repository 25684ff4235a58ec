"""How the embedded model is trained: the recipe, its batches, one step, checkpoints.

A batch is a function of (seed, step), so a run that is stopped and resumed sees the same
batches and ends at the same weights (same machine, same number of threads).
"""

import hashlib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attentropy.core.errors import ArgumentError
from attentropy.lab.embedded.model import Attention, EmbeddedModel, ModelShape
from attentropy.lab.embedded.probe import intercepted


@dataclass(frozen=True)
class Recipe:
    """Everything that decides the weights, apart from the text."""

    steps: int = 1125
    seed: int = 0
    batch: int = 32
    repeated: float = 0.25  # share of sequences that repeat a piece, so that copying pays early
    periods: tuple[int, int] = (8, 64)
    matrix_rate: float = 0.02  # Muon, for the matrices between embedding and head
    other_rate: float = 0.004  # AdamW, for the rest
    warmup: int = 50
    flat: float = 0.4  # share of the steps before the rate falls linearly
    resting: float = 1.0  # how much heads without positions look at the first key at the start
    looking_price: float = 0.01  # nats per head without positions that looks past the first key
    free_steps: int = 450  # before looking costs anything
    shape: ModelShape = field(default_factory=ModelShape)

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ArgumentError("steps", "at least 1", self.steps)


def initial_model(recipe: Recipe) -> EmbeddedModel:
    """A model that predicts uniformly and whose layers add nothing yet; its start is marked.

    Args:
        recipe: shape and seed.
    """
    torch.manual_seed(recipe.seed)
    model = EmbeddedModel(recipe.shape)
    torch.nn.init.normal_(model.embedding.weight, std=0.5)
    for name, weight in model.named_parameters():
        if name.endswith(("attention.output.weight", "feedforward.down.weight", "head.weight")):
            torch.nn.init.zeros_(weight)
    for module in model.modules():
        if isinstance(module, Attention):
            _rest_on_first_key(module, recipe)
    return model


@torch.no_grad()
def _rest_on_first_key(attention: Attention, recipe: Recipe) -> None:
    """Point the query bias of heads without positions at the key of the marked first position."""
    torch.nn.init.normal_(attention.start, std=2.0)
    key_HD = attention.key(attention.start).unflatten(0, (recipe.shape.heads, -1))
    key_HD[: recipe.shape.rotary_heads] = 0.0
    attention.query.bias.copy_(recipe.resting * key_HD.flatten())


def optimisers(model: EmbeddedModel, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside the layers, AdamW for embedding, head, norms and biases.

    Args:
        model: what is trained.
        recipe: learning rates.
    """
    inside = {name for name, w in model.layers.named_parameters(prefix="layers") if w.ndim == 2}
    matrices = [w for name, w in model.named_parameters() if name in inside]
    others = [w for name, w in model.named_parameters() if name not in inside]
    return [
        torch.optim.Muon(matrices, lr=recipe.matrix_rate, weight_decay=0.01),
        torch.optim.AdamW(others, lr=recipe.other_rate, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def rate_factor(step: int, recipe: Recipe) -> float:
    """Rises over `warmup` steps, stays 1, then falls linearly to 0.02.

    Args:
        step: number of steps done.
        recipe: number of steps, warm-up and flat part.
    """
    flat = recipe.flat * recipe.steps
    fall = 1.0 if step < flat else 1.0 - (step - flat) / (recipe.steps - flat)
    return min(1.0, (step + 1) / recipe.warmup) * max(0.02, fall)


def training_batch(text: Tensor, step: int, recipe: Recipe) -> Tensor:
    """[batch, length + 1] bytes; the first `repeated` share of rows repeats a random period.

    Args:
        text: bytes to learn from.
        step: number of steps done.
        recipe: sizes of a batch.
    """
    generator = torch.Generator().manual_seed(recipe.seed * 1_000_003 + step)
    places = torch.arange(recipe.shape.trained_length + 1)
    starts = torch.randint(len(text) - len(places), (recipe.batch, 1), generator=generator)
    rows = text[starts + places].long()
    count, (low, high) = int(recipe.repeated * recipe.batch), recipe.periods
    period = torch.randint(low, high + 1, (count, 1), generator=generator)
    rows[:count] = rows[:count].gather(1, places % period)
    return rows


def first_key_share(q: Tensor, k: Tensor) -> Tensor:
    """[B, H, n]: the share of causal attention that each row gives to the first key.

    Args:
        q: queries [B, H, n, D].
        k: keys [B, H, n, D].
    """
    hidden = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).triu(1)
    logits = q @ k.transpose(2, 3) / q.shape[-1] ** 0.5
    return logits.masked_fill(hidden, -torch.inf).softmax(-1)[..., 0]


class Trainer:
    """The state of a run: model, optimisers, step, losses."""

    def __init__(self, text: bytes, recipe: Recipe) -> None:
        self.text = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        self.recipe = recipe
        self.identity = f"{asdict(recipe)} {hashlib.sha256(text).hexdigest()}"
        self.model = initial_model(recipe)
        self.optimisers = optimisers(self.model, recipe)
        self.rates = [float(o.param_groups[0]["lr"]) for o in self.optimisers]
        self.losses: list[float] = []

    @property
    def step(self) -> int:
        """Number of steps done."""
        return len(self.losses)

    def advance(self) -> float:
        """Do one step and return the loss of the rows that are plain text, in nats per byte."""
        rows = training_batch(self.text, self.step, self.recipe)
        for optimiser, rate in zip(self.optimisers, self.rates, strict=True):
            optimiser.param_groups[0]["lr"] = rate * rate_factor(self.step, self.recipe)
            optimiser.zero_grad()
        logits, price = self._predict(rows[:, :-1])
        losses = F.cross_entropy(logits.transpose(1, 2), rows[:, 1:], reduction="none")
        (losses.mean() + price).backward()
        for optimiser in self.optimisers:
            optimiser.step()
        plain = int(self.recipe.repeated * self.recipe.batch)
        self.losses.append(losses[plain:].mean().item())
        return self.losses[-1]

    def _predict(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Logits, and what the heads without positions pay for not resting on the first key."""
        looking: list[Tensor] = []
        if self.step < self.recipe.free_steps:
            return self.model(tokens), torch.zeros(())

        def look(layer: int, q: Tensor, k: Tensor) -> Tensor:
            first = self.recipe.shape.rotary_heads
            looking.append(1 - first_key_share(q[:, first:], k[:, first:]).mean((0, 2)))
            return q

        with intercepted(self.model, look):
            logits = self.model(tokens)
        return logits, self.recipe.looking_price * torch.cat(looking).sum()

    def save(self, path: Path) -> None:
        """Write a checkpoint; an interruption leaves the old one whole.

        Args:
            path: of the checkpoint.
        """
        state: dict[str, Any] = {
            "identity": self.identity,
            "losses": self.losses,
            "model": self.model.state_dict(),
            "optimisers": [o.state_dict() for o in self.optimisers],
        }
        part = path.with_name(path.name + ".part")
        torch.save(state, part)
        part.replace(path)

    def resume(self, path: Path) -> None:
        """Continue from a checkpoint of the same recipe and text.

        Args:
            path: of the checkpoint.
        """
        state = torch.load(path, weights_only=True)
        if state["identity"] != self.identity:
            raise ArgumentError(
                "checkpoint", "of the same recipe and text (delete it to start again)", str(path)
            )
        self.model.load_state_dict(state["model"])
        for optimiser, stored in zip(self.optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(stored)
        self.losses = list(state["losses"])
