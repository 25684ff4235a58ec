"""How much gradient gets through a row of attention, and to how many keys.

With out = sum p_j v_j the derivative by the score of key j is p_j (v_j - out): nothing flows to a
key without weight, nor through a row that is one-hot, nor where all values agree.
"""

from typing import Any, NamedTuple, Unpack, cast

import torch
from torch import Tensor

from attentropy.analysis._rows import collect, per_head, rows
from attentropy.analysis._weighing import derivatives, only_softmax
from attentropy.attention.attend import attend
from attentropy.core.errors import ArgumentError, ArgumentTypeError
from attentropy.core.resolve import AttendOptions
from attentropy.core.results import Stats
from attentropy.core.scores import Dot


def jacobian_norm(q: Tensor, k: Tensor, v: Tensor, **options: Unpack[AttendOptions]) -> Tensor:
    """sqrt(sum_j p_j^2 |v_j - out|^2), the Frobenius norm of d out / d scores, [B,H,Q].

    That is its form for softmax; for other weights it is found by differentiating them.

    Args:
        q: queries [B,H,Q,D].
        k: keys [B,Hk,K,D].
        v: values [B,Hk,K,Dv].
        options: mask, score, scale, weights, bias, softcap and sink, as in attend().
    """
    parts = []
    for part in rows(q, k, v, share=2, **options):
        if part.is_softmax:
            parts.append(_spread(part.weights.square(), part.values, part.out).sqrt())
        else:
            slopes = derivatives(part.weigh, part.logits, part.values)
            parts.append(torch.stack([x.square().sum(-1) for x in slopes]).sum(0).sqrt())
    return collect(parts, q)


def _spread(weights: Tensor, values: Tensor, centre: Tensor) -> Tensor:
    """sum_j w_j |v_j - c|^2, [H,R]; differences are taken first, so that nothing cancels."""
    total = torch.zeros_like(weights[..., 0])
    for value, c in zip(values.unbind(-1), centre.unbind(-1), strict=True):
        total += (weights * (value[:, None] - c[..., None]).square()).sum(-1)
    return total


def saturated(stats: Stats, *, threshold: float = 0.01) -> Tensor:
    """The share of rows with 1 - sum p^2 below `threshold`, [H]; NaN for heads without a choice.

    1 - sum p^2 is the trace of the Jacobian of softmax. Rows with fewer than two visible keys do
    not count.

    Args:
        stats: of attend().
        threshold: in (0, 1).
    """
    if not isinstance(stats, Stats) or stats.gradient_flow is None:
        raise ArgumentTypeError("saturated: stats", "statistics of probabilities", repr(stats)[:40])
    if not 0 < threshold < 1:
        raise ArgumentError("saturated: threshold", "in (0, 1)", threshold)
    chosen = stats.visible >= 2
    low = (stats.gradient_flow < threshold) & chosen
    return low.sum((0, 2)).double() / chosen.sum((0, 2))


def live_keys(
    q: Tensor, k: Tensor, *, threshold: float = 1e-3, **options: Unpack[AttendOptions]
) -> Tensor:
    """The share of visible keys with p_j (1 - p_j) > threshold / 4, [B,H,Q]; 0 for blind rows.

    p (1 - p) is the derivative of a weight by its own score, 1/4 at most.

    Args:
        q: queries [B,H,Q,D].
        k: keys [B,Hk,K,D].
        threshold: in (0, 1).
        options: mask, score, scale, bias, softcap and sink, as in attend().
    """
    if not 0 < threshold < 1:
        raise ArgumentError("live_keys: threshold", "in (0, 1)", threshold)
    only_softmax(options, "live_keys")
    parts = []
    for part in rows(q, k, **options):
        p = part.weights
        live = (p * (1 - p) > threshold / 4).sum(-1, dtype=p.dtype)
        parts.append(live / part.visible.clamp(min=1))
    return collect(parts, q)


class Flow(NamedTuple):
    """Gradient against scale.

    Attributes:
        factors: [F], on the scale.
        entropy: mean entropy of rows, [F,H].
        jacobian: mean norm of d out / d scores, [F,H].
        flow: mean of 1 - sum p^2, [F,H].
        saturated: share of saturated rows, [F,H].
    """

    factors: Tensor
    entropy: Tensor
    jacobian: Tensor
    flow: Tensor
    saturated: Tensor


def flow_by_scale(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    factors: Any,
    *,
    scale: float | None = None,
    **options: Any,
) -> Flow:
    """Entropy, |d out / d scores|, 1 - sum p^2 and saturation with the scale times each factor.

    Numbers are means over rows, for each head.

    Args:
        q: queries [B,H,Q,D].
        k: keys [B,Hk,K,D].
        v: values [B,Hk,K,Dv].
        factors: numbers >= 0.
        scale: a number; the score's own if not given.
        options: those of attend() but scale.
    """
    only_softmax(cast(AttendOptions, options), "flow_by_scale")
    times = torch.as_tensor(factors, dtype=torch.float64, device=q.device).flatten()
    if not len(times) or not bool((times >= 0).all()):
        raise ArgumentError("flow_by_scale: factors", "numbers >= 0", factors)
    if scale is None:
        scale = (options.get("score") or Dot()).default_scale(q.shape[3])
    found = [_at_scale(q, k, v, scale * float(f), options) for f in times]
    return Flow(times, *(torch.stack(x) for x in zip(*found, strict=True)))


def _at_scale(
    q: Tensor, k: Tensor, v: Tensor, scale: float, options: dict[str, Any]
) -> tuple[Tensor, ...]:
    with torch.no_grad():
        _, stats = attend(q, k, v, scale=scale, **options)
    heads = stats.per_head()
    assert heads.entropy is not None
    assert heads.gradient_flow is not None
    norm = per_head(jacobian_norm(q, k, v, scale=scale, **options))
    return heads.entropy, norm, heads.gradient_flow, saturated(stats)


def expected_flow(n: int, spread: float) -> float:
    """E[1 - sum p^2] of a row of n Gaussian scores whose scaled values have this spread.

    Falls from 1 - 1/n at spread 0 to sqrt(2 log n)/spread far in the frozen phase.

    Args:
        n: number of keys.
        spread: standard deviation of the scaled scores.
    """
    from attentropy.theory.gaussian import expected_collision

    return 1.0 - float(expected_collision(n, spread))
