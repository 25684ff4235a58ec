"""A small transformer over bytes or patches, made of attentropy.nn, and how it is trained."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attentropy.core.results import Stats
from attentropy.core.scales import ScaleRule
from attentropy.nn.layers.multihead import MultiheadAttention

BYTES, MASK = 256, 256
Attention = Callable[[], nn.Module]  # gives Attended of [B,N,width]


class TransformerBlock(nn.Module):
    """x + attention(norm x), then x + feed-forward(norm x)."""

    def __init__(self, width: int, attention: Attention) -> None:
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = attention()
        self.feed = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Stats]:
        """Output [B,N,width], and the statistics of its attention.

        Args:
            x: features [B,N,width].
        """
        out, stats = self.attention(self.norm(x))
        x = x + out
        return x + self.feed(self.norm2(x)), stats


class Stack(nn.Module):
    """Blocks and a last norm."""

    def __init__(self, width: int, layers: int, attention: Attention) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(TransformerBlock(width, attention) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    @property
    def attentions(self) -> list[MultiheadAttention]:
        """The attention layers, first to last."""
        return [block.attention for block in self.blocks]  # type: ignore[misc]

    def forward(self, x: Tensor) -> tuple[Tensor, list[Stats]]:
        """Outputs [B,N,width], and the statistics of every layer.

        Args:
            x: features [B,N,width].
        """
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
        """Logits [B,N,256], and the statistics of every layer.

        Args:
            tokens: bytes [B,N]; 256 stands for a hidden one.
        """
        x, stats = self.stack(self.embedding(tokens))
        return self.head(x), stats


def windows(text: Tensor, length: int, count: int, rng: torch.Generator) -> Tensor:
    """Random pieces [count, length] of a text.

    Args:
        text: bytes [N].
        length: of a piece.
        count: number of pieces.
        rng: source of random numbers.
    """
    starts = torch.randint(0, len(text) - length + 1, (count,), generator=rng)
    return text[starts[:, None] + torch.arange(length)]


def next_byte_loss(model: ByteModel, tokens: Tensor) -> tuple[Tensor, list[Stats]]:
    """Mean loss of predicting each next byte, in nats.

    Args:
        model: a causal model.
        tokens: bytes [B,N+1].
    """
    logits, stats = model(tokens[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()), stats


def set_scales(attentions: list[MultiheadAttention], scales: list[ScaleRule | None]) -> None:
    """Give each layer its scale.

    Args:
        attentions: layers to change.
        scales: one for each; None is 1/sqrt d.
    """
    for layer, scale in zip(attentions, scales, strict=True):
        layer.scale = scale
