"""The entropy-invariant attention of the source documents, with its errors mended."""

import torch
from torch import Tensor, nn

from attentropy.attention import attend
from attentropy.errors import ArgumentTypeError
from attentropy.masks import Mask
from attentropy.nn._checks import count, divides
from attentropy.scales import LogLength
from attentropy.types import Attended


class EntropyInvariantAttention(nn.Module):
    """W_O softmax(kappa * log n / d_k * (W_Q Q)(W_K K)^T) W_V V, and the statistics of every row.

    n is the number of keys that a row may see, so causal and padded rows get their own; queries
    and keys may differ in number; nothing is masked with -1e9, so float16 works; a row that sees
    nothing gives the bias of W_O and no gradient. State dict as in the documents: `W_Q`, `W_K`,
    `W_V`, `W_O`, each with weight and bias.

    >>> layer = EntropyInvariantAttention(64, 4)
    >>> out, stats = layer(torch.randn(2, 5, 64), torch.randn(2, 9, 64), torch.randn(2, 9, 64))
    >>> out.shape, stats.entropy.shape
    (torch.Size([2, 5, 64]), torch.Size([2, 4, 5]))
    """

    def __init__(self, d_model: int, num_heads: int, kappa: float = 1.0) -> None:
        super().__init__()
        self.d_model = count("d_model", d_model)
        self.num_heads = divides("num_heads", num_heads, "d_model", d_model)
        self.d_k = d_model // num_heads
        self.scale = LogLength(kappa)
        self.W_Q, self.W_K, self.W_V, self.W_O = (nn.Linear(d_model, d_model) for _ in range(4))

    @property
    def kappa(self) -> float:
        """The factor on log n / d_k."""
        return self.scale.kappa

    def forward(
        self, Q: Tensor, K: Tensor, V: Tensor, mask: Mask | Tensor | None = None
    ) -> Attended:
        """Q [B,n_q,d_model], K and V [B,n_k,d_model].

        `mask` is a Mask, or a bool or integer tensor broadcastable to [B,H,n_q,n_k] whose zeros
        hide keys.
        """
        q, k, v = (
            w(x).unflatten(-1, (self.num_heads, self.d_k)).transpose(1, 2)
            for w, x in ((self.W_Q, Q), (self.W_K, K), (self.W_V, V))
        )
        out, stats = attend(q, k, v, mask=_shown(mask), scale=self.scale)
        return Attended(self.W_O(out.transpose(1, 2).flatten(2)), stats)

    def extra_repr(self) -> str:
        """Width, heads and kappa."""
        return f"{self.d_model}, heads={self.num_heads}, kappa={self.kappa}"


def _shown(mask: Mask | Tensor | None) -> Mask | Tensor | None:
    if not isinstance(mask, Tensor) or mask.dtype == torch.bool:
        return mask
    if mask.is_floating_point():
        # 0 hides in the documents and is neutral in an added mask: one of them would be a surprise
        raise ArgumentTypeError("mask.dtype", "bool or integer, 0 hides the key", mask.dtype)
    return mask != 0
