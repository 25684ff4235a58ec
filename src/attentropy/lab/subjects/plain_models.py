"""Small byte models of plain torch, of several kinds, as people train them.

They call `scaled_dot_product_attention`, so that a monitor sees them as it sees other models. The
kinds differ in what decides how training goes wrong: where the norms are, how positions enter, how
deep the model is, how many heads share a key, and whether it reads to the left or both ways.
"""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from attentropy.lab.subjects.small_model import BYTES
from attentropy.nn.positions.rotary import RotaryPositions


@dataclass(frozen=True)
class PlainKind:
    """Sizes and parts of a plain model.

    Attributes:
        width: of the residual stream.
        layers: number of blocks.
        heads: number of query heads.
        shared: number of query heads that share a key head.
        causal: True for the next byte; False for hidden bytes, read both ways.
        rotary: True for rotary positions, False for learned ones.
        after: True if norms come after the sums, as in the first transformers.
        places: number of learned positions.
    """

    width: int = 128
    layers: int = 2
    heads: int = 4
    shared: int = 1
    causal: bool = True
    rotary: bool = False
    after: bool = False
    places: int = 256


KINDS = {
    "decoder": PlainKind(),
    "masked encoder": PlainKind(width=64, causal=False, rotary=True),
    "post-norm decoder": PlainKind(width=64, after=True),
    "grouped decoder": PlainKind(width=64, heads=8, shared=4, rotary=True),
}


class PlainBlock(nn.Module):
    """Attention and a feed-forward network, each added to what came in.

    Args:
        kind: sizes and parts.
    """

    def __init__(self, kind: PlainKind) -> None:
        super().__init__()
        width, keys = kind.width, kind.width // kind.shared
        self.kind, self.widths = kind, [width, keys, keys]
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.inward = nn.Linear(width, sum(self.widths))
        self.outward = nn.Linear(width, width)
        self.feed = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.turn = RotaryPositions() if kind.rotary else None

    def attend(self, x: Tensor) -> Tensor:
        """Attention of [B,N,width] to itself.

        Args:
            x: features [B,N,width].
        """
        size = self.kind.width // self.kind.heads
        parts = self.inward(x).split(self.widths, -1)
        q, k, v = (part.unflatten(-1, (-1, size)).transpose(1, 2) for part in parts)
        if self.turn is not None:
            q, k = self.turn.rotate(q), self.turn.rotate(k)
        out = F.scaled_dot_product_attention(
            q, k, v, is_causal=self.kind.causal, enable_gqa=self.kind.shared > 1
        )
        return self.outward(out.transpose(1, 2).flatten(2))

    def forward(self, x: Tensor) -> Tensor:
        """Features [B,N,width] of the next layer.

        Args:
            x: features [B,N,width].
        """
        if self.kind.after:
            x = self.norms[0](x + self.attend(x))
            return self.norms[1](x + self.feed(x))
        x = x + self.attend(self.norms[0](x))
        return x + self.feed(self.norms[1](x))


class PlainModel(nn.Module):
    """Bytes [B,N] (256 stands for a hidden one) -> logits [B,N,256].

    Args:
        kind: sizes and parts.
    """

    def __init__(self, kind: PlainKind) -> None:
        super().__init__()
        self.kind = kind
        self.bytes = nn.Embedding(BYTES + 1, kind.width)
        self.places = None if kind.rotary else nn.Embedding(kind.places, kind.width)
        self.blocks = nn.Sequential(*(PlainBlock(kind) for _ in range(kind.layers)))
        self.read = nn.Sequential(nn.LayerNorm(kind.width), nn.Linear(kind.width, BYTES))
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits [B,N,256].

        Args:
            tokens: bytes [B,N]; 256 stands for a hidden one.
        """
        x = self.bytes(tokens)
        if self.places is not None:
            x = x + self.places.weight[: tokens.shape[1]]
        logits: Tensor = self.read(self.blocks(x))
        return logits
