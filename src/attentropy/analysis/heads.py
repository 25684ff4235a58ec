"""How similar are the heads of a layer? Entropies of mean maps, divergences, information.

Functions take q and k and the options of attend(); none holds the n x n maps. Weights are
probabilities: softmax, or Entmax(), Sparsemax() and Hard().
"""

from typing import NamedTuple, Unpack

import torch
from torch import Tensor

from attentropy.analysis._rows import entropy, resolved, rows
from attentropy.analysis._weighing import only_probabilities
from attentropy.attention.attend import attend
from attentropy.attention.key_mass import key_mass
from attentropy.core.errors import ArgumentError
from attentropy.core.resolve import AttendOptions


class HeadComparison(NamedTuple):
    """The result of `compare_heads`; natural logarithms.

    Attributes:
        entropy: mean entropy of the rows of each head, [H].
        entropy_of_mean: mean over rows of the entropy of the map averaged over heads, one number;
            between the mean of `entropy` and that plus log H.
        position_entropy: entropy of each head's map averaged over queries, [H].
        information: mutual information of query and attended position, [H].
        divergence: Jensen-Shannon divergence of each pair of heads, [H,H], from 0 to log 2.
        diversity: generalised Jensen-Shannon divergence of all heads, one number, 0 to log H.
    """

    entropy: Tensor
    entropy_of_mean: Tensor
    position_entropy: Tensor
    information: Tensor
    divergence: Tensor
    diversity: Tensor


def compare_heads(q: Tensor, k: Tensor, **options: Unpack[AttendOptions]) -> HeadComparison:
    """Entropies, information and divergences of the heads of a layer.

    diversity = H(mean over heads of p) - mean over heads of H(p), averaged over rows.

    Args:
        q: queries [B,H,Q,D].
        k: keys [B,Hk,K,D].
        options: mask, score, scale, weights, bias, softcap and sink, as in attend().
    """
    each, whole = _entropies(q, k, **options)
    place = position_entropy(q, k, **options).mean(0)
    return HeadComparison(
        each,
        whole,
        place,
        mutual_information(q, k, **options).mean(0),
        divergence(q, k, **options),
        whole - each.mean(),
    )


def _entropies(q: Tensor, k: Tensor, **options: Unpack[AttendOptions]) -> tuple[Tensor, Tensor]:
    """Mean entropy of each head [H], and mean entropy of the map averaged over heads."""
    only_probabilities(options, "an entropy")
    each, count = q.new_zeros(q.shape[1], dtype=torch.float64), 0
    whole = each.new_zeros(())
    for part in rows(q, k, **options):
        each += entropy(part.weights).sum(1)
        whole += entropy(part.weights.mean(0)).sum()
        count += part.weights.shape[1]
    return each / count, whole / count


def entropy_of_mean(q: Tensor, k: Tensor, **options: Unpack[AttendOptions]) -> Tensor:
    """The mean over rows of H(mean over heads of p), one number.

    mean_h H(p_h) <= H(mean_h p_h) <= mean_h H(p_h) + log H.

    Args:
        q: queries [B,H,Q,D].
        k: keys [B,Hk,K,D].
        options: mask, score, scale, weights, bias, softcap and sink, as in attend().
    """
    return _entropies(q, k, **options)[1]


def position_entropy(q: Tensor, k: Tensor, **options: Unpack[AttendOptions]) -> Tensor:
    """The entropy of m_j = mean over queries of p_ij, where a head looks on average, [B,H].

    Args:
        q: queries [B,H,Q,D].
        k: keys [B,Hk,K,D].
        options: mask, score, scale, weights, bias, softcap and sink, as in attend().
    """
    only_probabilities(options, "position_entropy")
    mass = key_mass(q.double(), k.double(), **_without_sink(options))
    total = mass.sum(-1, keepdim=True)
    return entropy(mass / total.masked_fill(total == 0, 1.0))


def mutual_information(q: Tensor, k: Tensor, **options: Unpack[AttendOptions]) -> Tensor:
    """I(query; position) = H(mean_i p_i) - mean_i H(p_i), queries taken as equally likely, [B,H].

    0 where every query looks at the same places; log n where each looks at its own key. Queries
    that see nothing do not count. O(n) memory.

    Args:
        q: queries [B,H,Q,D].
        k: keys [B,Hk,K,D].
        options: mask, score, scale, weights, bias, softcap and sink, as in attend().
    """
    only_probabilities(options, "mutual_information")
    with torch.no_grad():
        call = resolved(q, k, **options)
        _, stats = attend(q.double(), k.double(), k.double()[..., :1], **_without_sink(options))
    assert stats.entropy is not None
    seen = call.visible.expand(q.shape[:3]) > 0
    mean = (stats.entropy * seen).sum(-1) / seen.sum(-1).clamp(min=1)
    return position_entropy(q, k, **options) - mean


def _without_sink(options: AttendOptions) -> AttendOptions:
    if options.get("sink") is not None:
        raise ArgumentError("sink", "None: a sink has no position", "a tensor")
    return options


def divergence(q: Tensor, k: Tensor, **options: Unpack[AttendOptions]) -> Tensor:
    """H((p_g + p_h)/2) - (H(p_g) + H(p_h))/2, the mean over rows, for each pair of heads, [H,H].

    Args:
        q: queries [B,H,Q,D].
        k: keys [B,Hk,K,D].
        options: mask, score, scale, weights, bias, softcap and sink, as in attend().
    """
    only_probabilities(options, "divergence")
    heads = q.shape[1]
    total, count = q.new_zeros(heads, heads, dtype=torch.float64), 0
    for part in rows(q, k, share=heads + 1, **options):
        p = part.weights
        h = entropy(p)
        for g in range(heads):
            joint = entropy((p[g] + p) / 2)
            total[g] += (joint - (h[g] + h) / 2).sum(-1)
        count += p.shape[1]
    return (total / count).clamp(min=0.0)


class Pair(NamedTuple):
    """Two heads and their divergence.

    Attributes:
        one: index of a head.
        other: index of another head.
        divergence: in nats.
    """

    one: int
    other: int
    divergence: float


def duplicate_heads(
    q: Tensor, k: Tensor, *, threshold: float = 0.02, **options: Unpack[AttendOptions]
) -> list[Pair]:
    """Pairs of heads whose Jensen-Shannon divergence is below `threshold` nats, closest first.

    Args:
        q: queries [B,H,Q,D].
        k: keys [B,Hk,K,D].
        threshold: in nats; positive.
        options: mask, score, scale, weights, bias, softcap and sink, as in attend().
    """
    if threshold <= 0:
        raise ArgumentError("duplicate_heads: threshold", "> 0", threshold)
    table = divergence(q, k, **options)
    pairs = [
        Pair(g, h, float(table[g, h]))
        for g in range(len(table))
        for h in range(g + 1, len(table))
        if table[g, h] < threshold
    ]
    return sorted(pairs, key=lambda pair: pair.divergence)
