"""MultiheadAttention with one part replaced: additive, cosine and linear attention."""

from typing import Any

import torch
from torch import Tensor, nn

from attentropy.core.scales import Constant
from attentropy.core.scores import Cosine, Prepared
from attentropy.core.weights import Feature, Kernelised
from attentropy.nn._checks import count
from attentropy.nn.layers.multihead import MultiheadAttention
from attentropy.nn.scales.learned import LearnedScale


class AdditiveScore(nn.Module):
    """vector_h . tanh(q + k): the score of Bahdanau on projected queries and keys.

    Bounded by the sum of |vector|, whatever q and k are. State dict: `vector` [H, D].

    Args:
        num_heads: H.
        width: of queries and keys in a head.
    """

    def __init__(self, num_heads: int, width: int) -> None:
        super().__init__()
        count("AdditiveScore: num_heads", num_heads)
        count("AdditiveScore: width", width)
        self.vector = nn.Parameter(torch.randn(num_heads, width) * width**-0.5)

    def prepare(self, q: Tensor, k: Tensor) -> Prepared:
        """Queries and keys as they are, and the vector.

        Args:
            q: queries [B,H,Q,D].
            k: keys [B,Hk,K,D].
        """
        return Prepared(q, k, self.vector)

    def default_scale(self, head_dim: int) -> float:
        """1: the score is bounded already.

        Args:
            head_dim: D, which it does not depend on.
        """
        return 1.0


class AdditiveAttention(MultiheadAttention):
    """Logits vector_h . tanh(W_Q query + W_K key); head_dim is the hidden width.

    Costs O(n^2 D) tanh. State dict as MultiheadAttention, and `score.vector` [H, D].

    Args:
        embed_dim: width of inputs and output.
        num_heads: H.
        options: those of MultiheadAttention.
    """

    def __init__(self, embed_dim: int, num_heads: int, **options: Any) -> None:
        width = options.get("head_dim") or embed_dim // max(num_heads, 1)
        super().__init__(
            embed_dim, num_heads, score=AdditiveScore(num_heads, max(width, 1)), **options
        )


class CosineAttention(MultiheadAttention):
    """Logits scale_h * cos(W_Q query, W_K key), the scale learned for each head, 10 at first.

    At scale a the logits span at most 2a, so that entropy cannot fall more than worst_deficit(2a)
    below log n: raise `scale` for long rows. The learned scale never passes 100.

    Args:
        embed_dim: width of inputs and output.
        num_heads: H.
        options: those of MultiheadAttention.
    """

    def __init__(self, embed_dim: int, num_heads: int, **options: Any) -> None:
        if options.get("scale") is None:
            options["scale"] = LearnedScale(num_heads, base=Constant(10.0), limit=100.0)
        super().__init__(embed_dim, num_heads, score=Cosine(), **options)


class LinearAttention(MultiheadAttention):
    """Weights phi(q) . phi(k) / sum phi(q) . phi(k), in O(n) for full and causal masks.

    `feature` as in Kernelised. Such weights have no logits: no scale, no dropout in linear time,
    and statistics without entropy.

    Args:
        embed_dim: width of inputs and output.
        num_heads: H.
        feature: as in Kernelised.
        options: those of MultiheadAttention.
    """

    def __init__(
        self, embed_dim: int, num_heads: int, *, feature: str | Feature = "elu", **options: Any
    ) -> None:
        super().__init__(embed_dim, num_heads, weights=Kernelised(feature), **options)
