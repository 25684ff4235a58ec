"""Attention with a gate, a difference, a selection, scale invariance, or an adaptive scale."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attentropy.attention.attend import attend
from attentropy.attention.weights import WeightedOutput, attention_weights, with_weights
from attentropy.core.errors import ArgumentError, UnsupportedError
from attentropy.core.masks import causal
from attentropy.core.masks.mask import MaskLike, all_of
from attentropy.core.resolve import AttendOptions
from attentropy.core.results import Attended
from attentropy.core.weights import Entmax
from attentropy.nn._checks import count, divides, number
from attentropy.nn._masking import check_mask
from attentropy.nn.layers.multihead import MultiheadAttention


class GatedAttention(MultiheadAttention):
    """out_proj(sigmoid(W_G query) * heads): every number has a gate that its query sets.

    A closed gate lets a head say nothing, so that no key has to serve as a sink (Qiu et al., 2025,
    arXiv:2505.06708). State dict as MultiheadAttention, and `gate.weight`, `gate.bias`.

    Args:
        embed_dim: width of inputs and output.
        num_heads: H.
        options: those of MultiheadAttention.
    """

    def __init__(self, embed_dim: int, num_heads: int, **options: Any) -> None:
        super().__init__(embed_dim, num_heads, **options)
        where = {name: options.get(name) for name in ("device", "dtype")}
        bias = options.get("bias", True)
        self.gate = nn.Linear(embed_dim, num_heads * self.value_dim, bias=bias, **where)

    def _gated(self, heads_BQE: Tensor, query: Tensor) -> Tensor:
        gate: Tensor = self.gate(query)
        return heads_BQE * gate.sigmoid()


class ASEntmaxAttention(MultiheadAttention):
    """Entmax of (delta + beta (log(1 + n))^gamma) s, with beta and gamma of each query and head.

    beta = softplus(W_beta query) and gamma = gamma_range tanh(W_gamma query): a head learns how
    fast its weights sharpen as rows grow (Vasylenko et al., 2025, arXiv:2506.16640). n is the
    number of visible keys. State dict as MultiheadAttention, and `beta.weight`, `gamma.weight`.

    Args:
        embed_dim: width of inputs and output.
        num_heads: H.
        alpha: of Entmax, in (1, 2].
        delta: the part of the scale that does not depend on n.
        gamma_range: the largest power of log n.
        options: those of MultiheadAttention but scale and weights.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        alpha: float = 1.5,
        delta: float = 1.0,
        gamma_range: float = 2.0,
        **options: Any,
    ) -> None:
        given = [name for name in ("scale", "weights") if name in options]
        if given:
            rule = "left out: ASEntmaxAttention has its own"
            raise ArgumentError(given[0], rule, repr(options[given[0]]))
        super().__init__(embed_dim, num_heads, weights=Entmax(alpha), **options)
        self.delta = number("delta", delta)
        self.gamma_range = number("gamma_range", gamma_range, above=0.0)
        where = {name: options.get(name) for name in ("device", "dtype")}
        self.beta, self.gamma = (
            nn.Linear(embed_dim, num_heads, bias=False, **where) for _ in range(2)
        )

    def _options(
        self, query: Tensor, q: Tensor, k: Tensor, masks: tuple[MaskLike | None, ...]
    ) -> AttendOptions:
        # contiguous: the backward of softplus fails under torch.compile's aot_eager on some layouts
        beta, gamma = (proj(query).mT.contiguous() for proj in (self.beta, self.gamma))
        beta, gamma = F.softplus(beta), self.gamma_range * gamma.tanh()

        def scale(head_dim: int, visible: Tensor) -> Tensor:
            power = visible.clamp(min=1).log1p() ** gamma.to(visible.dtype)
            return (self.delta + beta.to(visible.dtype) * power) * head_dim**-0.5

        return {**super()._options(query, q, k, masks), "scale": scale}


class _Biased(MultiheadAttention):
    """Causal dot-product attention whose logits gain what a subclass computes, [B,H or 1,Q,K]."""

    def __init__(self, embed_dim: int, num_heads: int, **options: Any) -> None:
        given = [name for name in ("score", "scale", "context_parallel") if name in options]
        if given:
            rule = f"left out: {type(self).__name__} has its own logits"
            raise ArgumentError(given[0], rule, repr(options[given[0]]))
        super().__init__(embed_dim, num_heads, **options)

    def _options(
        self, query: Tensor, q: Tensor, k: Tensor, masks: tuple[MaskLike | None, ...]
    ) -> AttendOptions:
        options = super()._options(query, q, k, (causal, *masks))
        if options["bias"] is not None:
            raise UnsupportedError(f"{type(self).__name__} takes no positions that add to logits")
        # its gradient reaches queries and keys through the bias
        return {**options, "bias": self._added(q, k)}

    def _added(self, q: Tensor, k: Tensor) -> Tensor:
        raise NotImplementedError


class SelectiveAttention(_Biased):
    """Causal attention where a token can hide earlier ones from later ones: logits s_ij - F_ij.

    F_ij = sum over l < i of max(s_lj, 0), with s the logits of the first head and 0 for l = j and
    for the first key: whatever an earlier token selected against is masked (Leviathan et al., 2024,
    arXiv:2410.02703). For self attention without a cache; F takes O(n^2) memory.

    Args:
        embed_dim: width of inputs and output.
        num_heads: H.
        options: those of MultiheadAttention but score and scale.
    """

    def _added(self, q: Tensor, k: Tensor) -> Tensor:
        if q.shape[2] != k.shape[2]:
            rule = "as many as queries: SelectiveAttention is self attention without a cache"
            raise ArgumentError("keys", rule, f"{k.shape[2]} and {q.shape[2]}")
        s = q[:, :1] @ k[:, :1].mT / math.sqrt(self.head_dim)
        chosen = s.relu().tril(-1)
        chosen = torch.cat([torch.zeros_like(chosen[..., :1]), chosen[..., 1:]], -1)
        return chosen - chosen.cumsum(2)


class ScaleInvariantAttention(_Biased):
    """Causal attention with logits a_t s + m_t at distance t: every scale of distance counts alike.

    a_t = sqrt(1 + 2 log(1 + t / tau)) and m_t = -2 log(1 + t / tau), so that for Gaussian scores
    each octave of distances holds the same total attention and its entropy grows slower than log t
    (Anson et al., 2025, arXiv:2505.17083). Takes O(n^2) memory.

    Args:
        embed_dim: width of inputs and output.
        num_heads: H.
        tau: the distance below which attention hardly changes; positive.
        options: those of MultiheadAttention but score and scale.
    """

    def __init__(
        self, embed_dim: int, num_heads: int, *, tau: float = 10.0, **options: Any
    ) -> None:
        super().__init__(embed_dim, num_heads, **options)
        self.tau = number("tau", tau, above=0.0)

    def _added(self, q: Tensor, k: Tensor) -> Tensor:
        queries, keys = q.shape[2], k.shape[2]
        position = torch.arange(keys - queries, keys, device=q.device)
        behind = position[:, None] - torch.arange(keys, device=q.device)
        growth = 2 * (behind.clamp(min=0).to(q.dtype) / self.tau).log1p()
        whole = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
        s = q @ whole.mT / math.sqrt(self.head_dim)
        return ((1 + growth).sqrt() - 1) * s - growth


class DifferentialAttention(nn.Module):
    """W_O (1 - lambda_init) RMSNorm((softmax(Q1 K1) - lambda softmax(Q2 K2)) V): noise cancels.

    lambda = e^(l_q1 . l_k1) - e^(l_q2 . l_k2) + lambda_init is learned for the layer, and
    lambda_init = 0.8 - 0.6 e^(-0.3 depth) (Ye et al., 2024, arXiv:2410.05258). Every head has two
    maps of half its width; statistics are those of both, [B,2H,Q], first and second map of each
    head side by side.

    State dict: `q_proj`, `k_proj`, `v_proj`, `out_proj`, `norm.weight` [2 D] and `lambdas` [4, D],
    in the order l_q1, l_k1, l_q2, l_k2.

    Args:
        embed_dim: width of inputs and output.
        num_heads: H; 2 H divides embed_dim.
        depth: number of layers before this one.
        mask: for every call; True is visible.
        bias: whether the projections have a bias.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        depth: int = 0,
        mask: MaskLike | None = None,
        bias: bool = False,
    ) -> None:
        super().__init__()
        self.embed_dim = count("embed_dim", embed_dim)
        self.num_heads = count("num_heads", num_heads)
        divides("2 num_heads", 2 * num_heads, "embed_dim", embed_dim)
        self.head_dim = embed_dim // num_heads // 2
        check_mask(mask)
        self.mask = mask
        self.lambda_init = 0.8 - 0.6 * math.exp(-0.3 * count("depth", depth, least=0))
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (
            nn.Linear(embed_dim, embed_dim, bias=bias) for _ in range(4)
        )
        self.lambdas = nn.Parameter(0.1 * torch.randn(4, self.head_dim))
        self.norm = nn.RMSNorm(2 * self.head_dim, eps=1e-5)

    @property
    def subtracted(self) -> Tensor:
        """lambda, the share of the second map that is taken off the first."""
        q1, k1, q2, k2 = self.lambdas
        return (q1 @ k1).exp() - (q2 @ k2).exp() + self.lambda_init

    def forward(
        self, x: Tensor, *, mask: MaskLike | None = None, need_weights: bool = False
    ) -> Attended | WeightedOutput:
        """Attend from each token to the others.

        Args:
            x: inputs [B,N,embed_dim].
            mask: adds to the layer's own; True is visible.
            need_weights: returns (out, weights) with the differences of weights [B,H,N,N], which
                take O(n^2) memory.
        """
        if x.dim() != 3 or x.shape[-1] != self.embed_dim:
            raise ArgumentError("x", f"of shape [B,N,{self.embed_dim}]", list(x.shape))
        q, k = (
            proj(x).unflatten(-1, (2 * self.num_heads, -1)).transpose(1, 2)
            for proj in (self.q_proj, self.k_proj)
        )
        v = self.v_proj(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        shown = all_of((self.mask, mask))
        out, stats = attend(q, k, v.repeat_interleave(2, 1), mask=shown)
        mixed = self._difference(out).to(self.norm.weight.dtype)
        normed: Tensor = self.norm(mixed) * (1 - self.lambda_init)
        found = Attended(self.out_proj(normed.transpose(1, 2).flatten(2)), stats)
        if not need_weights:
            return found
        return with_weights(found, self._difference(attention_weights(q, k, mask=shown)))

    def _difference(self, maps: Tensor) -> Tensor:
        """First map minus lambda times second, [B,H,...] of [B,2H,...]."""
        first, second = maps.unflatten(1, (self.num_heads, 2)).unbind(2)
        return first - self.subtracted.to(maps.dtype) * second

    def extra_repr(self) -> str:
        """Widths and the first lambda."""
        return f"{self.embed_dim}, heads={self.num_heads}, lambda_init={self.lambda_init:.3f}"
