"""The gated attention unit: one head of attention inside a gated feed-forward layer."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attentropy.attention.attend import attend
from attentropy.attention.weights import WeightedOutput, attention_weights, with_weights
from attentropy.core.errors import ArgumentError
from attentropy.core.masks.mask import MaskLike, all_of
from attentropy.core.resolve import AttendOptions
from attentropy.core.results import Attended
from attentropy.core.scales import ScaleRule
from attentropy.core.scores import ALiBi, Relative
from attentropy.core.weights import ReluSquared, Weights
from attentropy.nn._checks import count, parts
from attentropy.nn._masking import check_mask
from attentropy.nn.layers.cache import KVCache
from attentropy.nn.positions.encodings import Positions, as_positions


class GatedAttentionUnit(nn.Module):
    """W_O (U * A V) with U, V, Z = silu(W x), q = g_1 Z + b_1, k = g_2 Z + b_2, A = weights(q, k).

    `weights` is the form of A: ReluSquared() divides max(s, 0)^2 by the number of visible keys,
    L2(ReluSquared()) gives every row norm one, Softmax() makes probabilities. Only the last has an
    entropy; all of them have a sparsity.

    State dict: `in_proj` (rows of U, V, Z) and `out_proj` with weight and bias, `gain` and
    `offset` [2, key_dim].

    Args:
        embed_dim: width of input and output.
        expansion: width of U and V as a multiple of embed_dim.
        key_dim: width of queries and keys.
        weights: ReluSquared() if not given.
        scale: as in attend(); 1/sqrt(key_dim) if not given.
        mask: for every call; True is visible.
        positions: as in MultiheadAttention, except those that change inputs.
        bias: whether the projections have a bias.
    """

    def __init__(
        self,
        embed_dim: int,
        *,
        expansion: int = 2,
        key_dim: int = 128,
        weights: Weights | None = None,
        scale: ScaleRule | float | None = None,
        mask: MaskLike | None = None,
        positions: Positions | ALiBi | Relative | None = None,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.embed_dim = count("embed_dim", embed_dim)
        self.width = embed_dim * count("expansion", expansion)
        self.key_dim = count("key_dim", key_dim)
        self.weights = ReluSquared() if weights is None else weights
        parts(scale=scale, weights=weights)
        check_mask(mask)
        self.scale, self.mask, self.positions = scale, mask, as_positions(positions)
        self.in_proj = nn.Linear(embed_dim, 2 * self.width + key_dim, bias=bias)
        self.out_proj = nn.Linear(self.width, embed_dim, bias=bias)
        self.gain = nn.Parameter(torch.ones(2, key_dim))
        self.offset = nn.Parameter(torch.zeros(2, key_dim))
        nn.init.xavier_uniform_(self.in_proj.weight)

    def forward(
        self,
        x: Tensor,
        *,
        mask: MaskLike | None = None,
        cache: KVCache | None = None,
        need_weights: bool = False,
    ) -> Attended | WeightedOutput:
        """Attend from each token to the others.

        Args:
            x: inputs [B,N,embed_dim].
            mask: adds to the layer's own; True is visible.
            cache: keys and values of earlier tokens; new ones are appended.
            need_weights: returns (out, weights) with A [B,1,N,K], which carries the statistics as
                `weights.stats`; it takes O(n^2) memory.
        """
        if x.dim() != 3 or x.shape[-1] != self.embed_dim:
            raise ArgumentError("x", f"of shape [B,N,{self.embed_dim}]", list(x.shape))
        u, v, z = F.silu(self.in_proj(x)).split((self.width, self.width, self.key_dim), -1)
        first = 0 if cache is None else cache.length
        q, k = self._turned(z, first)
        k, v = k[:, None], v[:, None]
        if cache is not None:
            k, v = cache.extend(k, v)
        options = self._options(mask)
        out, stats = attend(q[:, None], k, v, **options)
        found = Attended(self.out_proj(u * out[:, 0]), stats)
        if not need_weights:
            return found
        return with_weights(found, attention_weights(q[:, None], k, **options))

    def _turned(self, z: Tensor, first: int) -> tuple[Tensor, Tensor]:
        q, k = (
            z * g + b for g, b in zip(self.gain.to(z.dtype), self.offset.to(z.dtype), strict=True)
        )
        if self.positions is None:
            return q, k
        return self.positions.rotate(q, first=first), self.positions.rotate(k, first=first)

    def _options(self, mask: MaskLike | None) -> AttendOptions:
        return {
            "mask": all_of((self.mask, mask)),
            "bias": None if self.positions is None else self.positions.bias(),
            "scale": self.scale,
            "weights": self.weights,
        }

    def extra_repr(self) -> str:
        """Widths and the form of the weights."""
        return f"{self.embed_dim}, width={self.width}, key_dim={self.key_dim}, {self.weights}"
