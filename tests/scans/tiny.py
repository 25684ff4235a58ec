"""Small models for tests of the scan: random weights, real attention."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Mix(nn.Module):
    """One layer of causal attention."""

    def __init__(self, heads: int, width: int) -> None:
        super().__init__()
        self.heads = heads
        self.mixed = nn.Linear(width, 3 * width)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.mixed(x).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + out.transpose(1, 2).flatten(2)


class Tiny(nn.Module):
    """A causal byte model of two layers; `positions` limits the length it takes."""

    def __init__(self, *, heads: int = 4, width: int = 32, positions: int | None = None) -> None:
        super().__init__()
        self.trained_length = 32
        self.embedding = nn.Embedding(256, width)
        self.position = None if positions is None else nn.Embedding(positions, width)
        self.layers = nn.ModuleList(Mix(heads, width) for _ in range(2))
        self.head = nn.Linear(width, 256)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        if self.position is not None:
            x = x + self.position(torch.arange(ids.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Picky(Tiny):
    """Refuses more than 100 tokens without having said so."""

    def forward(self, ids: Tensor) -> Tensor:
        if ids.shape[1] > 100:
            raise RuntimeError("more than 100 tokens\nmuch detail")
        return super().forward(ids)


class Wrong(Tiny):
    """Has a mistake of its own."""

    def forward(self, ids: Tensor) -> Tensor:
        raise KeyError("positions")


def wrong() -> Wrong:
    return Wrong()


def leaving() -> None:
    raise SystemExit(3)


def make() -> Tiny:
    torch.manual_seed(0)
    return Tiny()


def short() -> Tiny:
    torch.manual_seed(0)
    return Tiny(positions=64)


def picky() -> Picky:
    torch.manual_seed(0)
    return Picky()


def number() -> int:
    return 7


def broken() -> None:
    raise KeyError("no weights today")


constant = 3


class ByHand(Mix):
    """The same attention with a softmax of its own, which can be watched but not changed."""

    def forward(self, x: Tensor) -> Tensor:
        parts = self.mixed(x).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        s = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(later, -torch.inf)
        return x + (s.softmax(-1) @ v).transpose(1, 2).flatten(2)


def by_hand() -> Tiny:
    torch.manual_seed(0)
    model = Tiny()
    model.layers = nn.ModuleList(ByHand(4, 32) for _ in range(2))
    return model


def half_by_hand() -> Tiny:
    model = by_hand()
    model.layers[1] = Mix(4, 32)
    return model
