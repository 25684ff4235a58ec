"""Attention by age alone: weights decay with distance, at a rate learned for each head."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from attentropy.attention.attend import attend
from attentropy.attention.weights import WeightedOutput, attention_weights, with_weights
from attentropy.core.errors import ArgumentError
from attentropy.core.results import Attended
from attentropy.core.weights import Decay
from attentropy.nn._checks import count, divides
from attentropy.nn.layers.cache import KVCache


class DecayAttention(nn.Module):
    """out_i = sum_j r_h^(i-j) v_j / sum_j r_h^(i-j) over keys j <= i, r_h in (0, 1) learned.

    A moving average in O(n), without queries and keys. Its sparsity is
    sqrt(tanh(nx/2) / (n tanh(x/2))), x = -log r, whatever the data. Rates start where heads
    remember 2, 4, 8, ... tokens, or at `rate`.

    State dict: `logit_rate` [H], `v_proj.weight`, `out_proj.weight` and biases.

    Args:
        embed_dim: width of input and output.
        num_heads: divides embed_dim.
        rate: of every head at first, in (0, 1).
        bias: whether the projections have a bias.
    """

    def __init__(
        self, embed_dim: int, num_heads: int, *, rate: float | None = None, bias: bool = True
    ) -> None:
        super().__init__()
        self.embed_dim = count("embed_dim", embed_dim)
        self.num_heads = divides("num_heads", num_heads, "embed_dim", embed_dim)
        self.logit_rate = nn.Parameter(_first(num_heads, rate).logit())
        self.v_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias)

    @property
    def rate(self) -> Tensor:
        """The rate of each head, [H]."""
        return self.logit_rate.sigmoid()

    def forward(
        self, x: Tensor, *, cache: KVCache | None = None, need_weights: bool = False
    ) -> Attended | WeightedOutput:
        """Average the values of tokens up to each one.

        Args:
            x: inputs [B,N,embed_dim].
            cache: keys and values of earlier tokens; new ones are appended.
            need_weights: returns (out, weights) with the weights [B,H,N,K], which carry the
                statistics as `weights.stats`; they take O(n^2) memory.
        """
        if x.dim() != 3 or x.shape[-1] != self.embed_dim:
            raise ArgumentError("x", f"of shape [B,N,{self.embed_dim}]", list(x.shape))
        v = self.v_proj(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        unused = v[..., :1]
        q, k = unused, unused
        if cache is not None:
            k, v = cache.extend(unused, v)
        out, stats = attend(q, k, v, weights=Decay(self.rate))
        assert stats.mass is not None
        mass = stats.mass.masked_fill(stats.visible == 0, 1.0)
        out = out / mass[..., None].to(out.dtype)
        one = (stats.visible > 0).to(mass.dtype)
        stats = replace(stats, collision=stats.collision / mass.square(), mass=one)
        found = Attended(self.out_proj(out.transpose(1, 2).flatten(2)), stats)
        if not need_weights:
            return found
        weights = attention_weights(q, k, weights=Decay(self.rate))
        return with_weights(found, weights / mass[..., None])

    def extra_repr(self) -> str:
        """Width and heads."""
        return f"{self.embed_dim}, heads={self.num_heads}"


def _first(heads: int, rate: float | None) -> Tensor:
    if rate is None:
        return 1 - 2.0 ** -torch.arange(1, heads + 1).clamp(max=16)
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < 1:
        raise ArgumentError("DecayAttention: rate", "a number in (0, 1)", rate)
    return torch.full((heads,), float(rate))
