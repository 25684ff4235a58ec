"""Spectra of attention maps (dense, for small n) and of projections.

exp(H) counts attended keys and is not a rank: a uniform map has exp(H) = n and rank 1, the identity
exp(H) = 1 and rank n. Effective rank is the exponential of the entropy of normalised singular
values.
"""

from typing import NamedTuple, Protocol, Unpack

import torch
from torch import Tensor

from attentropy.analysis._rows import collect, entropy, rows
from attentropy.core.errors import ArgumentError, ArgumentTypeError
from attentropy.core.resolve import AttendOptions


def map_dense(q: Tensor, k: Tensor, **options: Unpack[AttendOptions]) -> Tensor:
    """The attention map itself, p [B,H,Q,K] in float64, with any weights that logits decide.

    Args:
        q: queries [B,H,Q,D].
        k: keys [B,Hk,K,D].
        options: mask, score, scale, weights, bias, softcap and sink, as in attend().
    """
    return collect([part.weights for part in rows(q, k, **options)], q)


def eigenvalues_dense(q: Tensor, k: Tensor, **options: Unpack[AttendOptions]) -> Tensor:
    """Eigenvalues of square maps, complex [B,H,n], largest modulus first.

    The first is 1 where the weights are probabilities.

    Args:
        q: queries [B,H,Q,D].
        k: keys [B,Hk,K,D].
        options: mask, score, scale, weights, bias, softcap and sink, as in attend().
    """
    values = torch.linalg.eigvals(_square(map_dense(q, k, **options)))
    order = values.abs().argsort(-1, descending=True)
    return values.gather(-1, order)


def singular_values_dense(q: Tensor, k: Tensor, **options: Unpack[AttendOptions]) -> Tensor:
    """Singular values of the maps, [B,H,min(Q,K)], largest first.

    Args:
        q: queries [B,H,Q,D].
        k: keys [B,Hk,K,D].
        options: mask, score, scale, weights, bias, softcap and sink, as in attend().
    """
    return torch.linalg.svdvals(map_dense(q, k, **options))


def effective_rank_dense(q: Tensor, k: Tensor, **options: Unpack[AttendOptions]) -> Tensor:
    """exp(-sum t log t), t the singular values divided by their sum, [B,H].

    Args:
        q: queries [B,H,Q,D].
        k: keys [B,Hk,K,D].
        options: mask, score, scale, weights, bias, softcap and sink, as in attend().
    """
    return effective_rank(singular_values_dense(q, k, **options))


def effective_rank(singular_values: Tensor) -> Tensor:
    """Exp of the entropy of s / sum s along the last dimension; 0 where all are 0.

    Args:
        singular_values: [...,n], not negative.

    >>> effective_rank(torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]]))
    tensor([2., 1.])
    """
    total = singular_values.sum(-1, keepdim=True)
    share = singular_values / total.masked_fill(total == 0, 1.0)
    return entropy(share).exp() * (total[..., 0] > 0)


class CausalRank(NamedTuple):
    """Rank of causal maps: exact by the determinant, and as far as float64 can tell; each [B,H].

    Attributes:
        log_determinant: sum log |p_ii|: finite means full rank.
        numerical: number of singular values above float64 rounding.
        smallest: the least singular value.
    """

    log_determinant: Tensor
    numerical: Tensor
    smallest: Tensor


def causal_rank_dense(q: Tensor, k: Tensor, **options: Unpack[AttendOptions]) -> CausalRank:
    """The rank of causal maps, which are triangular with determinant prod p_ii.

    Softmax has p_ii > 0 and full rank, though the smallest singular value may be far below
    rounding; other weights may be 0 on the diagonal.

    Args:
        q: queries [B,H,Q,D].
        k: keys [B,Hk,K,D].
        options: mask, score, scale, weights, bias, softcap and sink, as in attend().
    """
    p = _square(map_dense(q, k, **options))
    if bool(p.triu(1).any()):
        raise ArgumentError("mask", "causal, or one that hides what causal hides", "another")
    s = torch.linalg.svdvals(p)
    size = torch.finfo(p.dtype).eps * p.shape[-1] * s[..., :1]
    log_p = p.diagonal(dim1=-2, dim2=-1).abs().log()
    return CausalRank(log_p.sum(-1), (s > size).sum(-1), s[..., -1])


def _square(p: Tensor) -> Tensor:
    if p.shape[-1] != p.shape[-2]:
        rule = f"the number of queries {p.shape[-2]}, for a square map"
        raise ArgumentError("the number of keys", rule, p.shape[-1])
    return p


class ProjectedLayer(Protocol):
    """Heads and weights, as attentropy.nn.MultiheadAttention has them.

    Attributes:
        num_heads: heads of queries.
        num_kv_heads: heads of keys and values.
    """

    num_heads: int
    num_kv_heads: int

    @property
    def q_weight(self) -> Tensor:
        """[H*D, embed_dim]."""
        ...

    @property
    def k_weight(self) -> Tensor:
        """[Hk*D, kdim]."""
        ...

    @property
    def v_weight(self) -> Tensor:
        """[Hk*Dv, vdim]."""
        ...

    @property
    def o_weight(self) -> Tensor:
        """[embed_dim, H*Dv]."""
        ...


class ProjectionSpectrum(NamedTuple):
    """Singular values for each head.

    Attributes:
        scores: of W_Q^T W_K, [H,D].
        values: of W_V^T W_O^T, [H,Dv].
    """

    scores: Tensor
    values: Tensor


@torch.no_grad()
def projection_spectrum(layer: ProjectedLayer) -> ProjectionSpectrum:
    """Singular values of the products of projections: of scores, and of outputs.

    x W_Q^T W_K y^T is the score of two inputs and x W_V^T W_O^T what a head writes; both have rank
    head_dim at most. From two QR factors: the d_model x d_model product is never formed.

    Args:
        layer: a layer of attentropy.nn.
    """
    if not hasattr(layer, "q_weight"):
        rule = "a layer of attentropy.nn (MultiheadAttention.from_torch makes one of torch's)"
        raise ArgumentTypeError("layer", rule, type(layer).__name__)
    group = layer.num_heads // layer.num_kv_heads
    q, o = (
        x.double().unflatten(0, (layer.num_heads, -1)) for x in (layer.q_weight, layer.o_weight.mT)
    )
    k, v = (
        x.double().unflatten(0, (layer.num_kv_heads, -1)).repeat_interleave(group, 0)
        for x in (layer.k_weight, layer.v_weight)
    )
    return ProjectionSpectrum(_product_spectrum(q, k), _product_spectrum(v, o))


def _product_spectrum(a: Tensor, b: Tensor) -> Tensor:
    """Singular values of a^T b for [H,D,n] and [H,D,m]; D of them, zeros where a width is less."""
    r, t = (torch.linalg.qr(x.mT)[1] for x in (a, b))
    s = torch.linalg.svdvals(r @ t.mT)
    return torch.nn.functional.pad(s, (0, a.shape[1] - s.shape[-1]))
