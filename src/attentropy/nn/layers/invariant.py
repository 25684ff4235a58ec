"""The entropy-invariant attention of the source documents, with its errors corrected."""

import torch
from torch import Tensor, nn

from attentropy.attention.attend import attend
from attentropy.attention.weights import WeightedOutput, attention_weights, with_weights
from attentropy.core.errors import ArgumentError
from attentropy.core.masks import Mask
from attentropy.core.results import Attended
from attentropy.core.scales import LogLength
from attentropy.core.scores import Dot
from attentropy.nn._checks import count, divides


class EntropyInvariantAttention(nn.Module):
    """W_O softmax(kappa * log n / d_k * (W_Q Q)(W_K K)^T) W_V V, and the statistics of every row.

    n is the number of keys that a row may see, so causal and padded rows get their own; queries
    and keys may differ in number; nothing is masked with -1e9, so float16 works; a row that sees
    nothing gives the bias of W_O and no gradient.

    As in the documents the weights are returned, which takes O(n^2) memory; `need_weights=False`
    returns the statistics in their place, in O(n). State dict as in the documents: `W_Q`, `W_K`,
    `W_V`, `W_O`, each with weight and bias.

    Args:
        d_model: width of inputs and output.
        num_heads: divides d_model.
        kappa: the factor on log n / d_k; positive.

    >>> layer = EntropyInvariantAttention(64, 4)
    >>> out, weights = layer(torch.randn(2, 5, 64), torch.randn(2, 9, 64), torch.randn(2, 9, 64))
    >>> out.shape, weights.shape, weights.entropy.shape
    (torch.Size([2, 5, 64]), torch.Size([2, 4, 5, 9]), torch.Size([2, 4, 5]))
    """

    def __init__(self, d_model: int, num_heads: int, kappa: float = 1.0) -> None:
        super().__init__()
        self.d_model = count("d_model", d_model)
        self.num_heads = divides("num_heads", num_heads, "d_model", d_model)
        self.d_k = d_model // num_heads
        self.scale = LogLength(kappa)
        self.score, self.qk_norm = Dot(), None
        self.W_Q, self.W_K, self.W_V, self.W_O = (nn.Linear(d_model, d_model) for _ in range(4))

    @property
    def kappa(self) -> float:
        """The factor on log n / d_k."""
        return self.scale.kappa

    def forward(
        self,
        Q: Tensor,
        K: Tensor | None = None,
        V: Tensor | None = None,
        mask: Mask | Tensor | None = None,
        *,
        need_weights: bool = True,
    ) -> Attended | WeightedOutput:
        """Attend from Q to K, with values from V.

        Args:
            Q: inputs of queries [B,n_q,d_model].
            K: inputs of keys [B,n_k,d_model]; Q if None.
            V: inputs of values [B,n_k,d_model]; K if None.
            mask: a Mask, or a tensor of 0 and 1 (bool, integer or float) broadcastable to
                [B,H,n_q,n_k] whose zeros hide keys.
            need_weights: True returns (output, weights [B,H,n_q,n_k]), where `weights.stats` holds
                the statistics; False returns (output, statistics).
        """
        K = Q if K is None else K
        V = K if V is None else V
        for name, x in (("Q", Q), ("K", K), ("V", V)):
            if not isinstance(x, Tensor) or x.dim() != 3 or x.shape[-1] != self.d_model:
                got = list(x.shape) if isinstance(x, Tensor) else type(x).__name__
                raise ArgumentError(name, f"of shape [B,n,{self.d_model}]", got)
        q, k, v = (
            w(x).unflatten(-1, (self.num_heads, self.d_k)).transpose(1, 2)
            for w, x in ((self.W_Q, Q), (self.W_K, K), (self.W_V, V))
        )
        shown = _shown(mask)
        out, stats = attend(q, k, v, mask=shown, scale=self.scale)
        attended = Attended(self.W_O(out.transpose(1, 2).flatten(2)), stats)
        if not need_weights:
            return attended
        return with_weights(attended, attention_weights(q, k, mask=shown, scale=self.scale))

    def logit_scale(self, n: int) -> Tensor:
        """The scale of each head for rows of n visible keys, [H].

        Args:
            n: visible keys of a row.
        """
        return self.scale(self.d_k, torch.full((self.num_heads,), float(n)))

    @property
    def head_dim(self) -> int:
        """d_k, as other layers name it."""
        return self.d_k

    @property
    def num_kv_heads(self) -> int:
        """The number of heads of keys, which is that of queries."""
        return self.num_heads

    @property
    def q_weight(self) -> Tensor:
        """W_Q [d_model, d_model]."""
        return self.W_Q.weight

    @property
    def q_bias(self) -> Tensor:
        """The bias of queries."""
        return self.W_Q.bias

    @property
    def k_weight(self) -> Tensor:
        """W_K."""
        return self.W_K.weight

    @property
    def v_weight(self) -> Tensor:
        """W_V."""
        return self.W_V.weight

    @property
    def o_weight(self) -> Tensor:
        """W_O."""
        return self.W_O.weight

    def extra_repr(self) -> str:
        """Width, heads and kappa."""
        return f"{self.d_model}, heads={self.num_heads}, kappa={self.kappa}"


def _shown(mask: Mask | Tensor | None) -> Mask | Tensor | None:
    if not isinstance(mask, Tensor) or mask.dtype == torch.bool:
        return mask
    if mask.is_floating_point() and not _zeros_and_ones(mask):
        # 0 hides in the documents and is neutral in an added mask: one of them would be a surprise
        rule = "of 0 (hidden) and 1 (visible), some of them 1; added masks are not taken"
        raise ArgumentError("mask", rule, mask.dtype)
    return mask != 0


def _zeros_and_ones(mask: Tensor) -> bool:
    """Whether a float mask says which keys are visible, as torch.ones(n, n).tril() does."""
    if torch.compiler.is_compiling():
        return False
    return bool(((mask == 0) | (mask == 1)).all() and (mask == 1).any())
