"""A small transformer over bytes or patches, made of attentropy.nn, and how it is trained."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attentropy.nn.multihead import MultiheadAttention
from attentropy.scales import HoldEntropy, ScaleRule
from attentropy.scores import Dot, Prepared
from attentropy.types import Stats

BYTES, MASK = 256, 256
Attention = Callable[[], nn.Module]  # gives Attended of [B,N,width]


class Block(nn.Module):
    """x + attention(norm x), then x + feed-forward(norm x)."""

    def __init__(self, width: int, attention: Attention) -> None:
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = attention()
        self.feed = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Stats]:
        """X [B,N,width], and the statistics of its attention."""
        out, stats = self.attention(self.norm(x))
        x = x + out
        return x + self.feed(self.norm2(x)), stats


class Stack(nn.Module):
    """Blocks and a last norm."""

    def __init__(self, width: int, layers: int, attention: Attention) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width, attention) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    @property
    def attentions(self) -> list[MultiheadAttention]:
        """The attention layers, first to last."""
        return [block.attention for block in self.blocks]  # type: ignore[misc]

    def forward(self, x: Tensor) -> tuple[Tensor, list[Stats]]:
        """Outputs [B,N,width], and the statistics of every layer."""
        seen = []
        for block in self.blocks:
            x, stats = block(x)
            seen.append(stats)
        return self.norm(x), seen


class ByteModel(nn.Module):
    """Bytes [B,N] (256 stands for a hidden one) -> logits [B,N,256], and statistics."""

    def __init__(self, width: int, layers: int, attention: Attention) -> None:
        super().__init__()
        self.embedding = nn.Embedding(BYTES + 1, width)
        nn.init.normal_(self.embedding.weight, std=width**-0.5)
        self.stack = Stack(width, layers, attention)
        self.head = nn.Linear(width, BYTES)

    def forward(self, tokens: Tensor) -> tuple[Tensor, list[Stats]]:
        """Logits and the statistics of every layer."""
        x, stats = self.stack(self.embedding(tokens))
        return self.head(x), stats


def windows(text: Tensor, length: int, count: int, rng: torch.Generator) -> Tensor:
    """Random pieces [count, length] of a text."""
    starts = torch.randint(0, len(text) - length + 1, (count,), generator=rng)
    return text[starts[:, None] + torch.arange(length)]


def next_byte_loss(model: ByteModel, tokens: Tensor) -> tuple[Tensor, list[Stats]]:
    """Mean loss of predicting each next byte, in nats."""
    logits, stats = model(tokens[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()), stats


class _Seen(Dot):
    """The dot score, which keeps the spread of the logits it leads to."""

    def __init__(self, layer: MultiheadAttention) -> None:
        object.__setattr__(self, "layer", layer)
        object.__setattr__(self, "spread", None)

    def prepare(self, q: Tensor, k: Tensor) -> Prepared:
        """As Dot."""
        s = (q @ k.mT) * self.layer.logit_scale(k.shape[2])[:, None, None]  # type: ignore[attr-defined]
        object.__setattr__(self, "spread", s.var(-1).mean((0, 2)).sqrt())
        return Prepared(q, k)


@torch.no_grad()
def spreads(model: nn.Module, attentions: list[MultiheadAttention], batch: Tensor) -> list[Tensor]:
    """Root mean square over rows of the standard deviation of scaled logits, [H] for each layer."""
    seen = [_Seen(layer) for layer in attentions]
    before = [layer.score for layer in attentions]
    for layer, score in zip(attentions, seen, strict=True):
        layer.score = score
    try:
        model(batch)
    finally:
        for layer, old in zip(attentions, before, strict=True):
            layer.score = old
    return [score.spread for score in seen]  # type: ignore[attr-defined]


def set_scales(attentions: list[MultiheadAttention], scales: list[ScaleRule | None]) -> None:
    """Another scale for each layer."""
    for layer, scale in zip(attentions, scales, strict=True):
        layer.scale = scale


@dataclass(frozen=True)
class Beyond:
    """`rule` for rows of more than `reference` keys; shorter rows keep its value there."""

    rule: ScaleRule
    reference: int

    def __call__(self, head_dim: int, visible: Tensor) -> Tensor:
        return self.rule(head_dim, visible.clamp(min=self.reference))


def held(each: list[Tensor], reference: int) -> list[Beyond]:
    """HoldEntropy for each layer, with the spread of every head at the reference length."""
    rules = [HoldEntropy(reference, tuple(spread.tolist())) for spread in each]
    return [Beyond(rule, reference) for rule in rules]
