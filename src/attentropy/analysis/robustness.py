"""What does noise on the scores do to the output? Measured, predicted, worst and certified.

With õ = sum p_j e^(e_j) v_j / sum p_j e^(e_j), rho = Var(e^e) / E[e^e]^2, independent noise has

    bias -rho sum p^2 (v - out),   variance rho sum p^2 (v - out)^2,

so a row is robust if 1/sum p^2 is large; the number of keys does not matter. A part of the noise
that all keys of a row share cancels. Errors are Euclidean norms of õ - out.

Other weights than softmax have no such closed form: their error is predicted by the derivative of
the output, to first order in the noise, and what keys share need not cancel.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Unpack

import torch
from torch import Tensor

from attentropy.analysis._rows import WeightRows, collect, rows
from attentropy.analysis._weighing import derivatives, kind_of, only_softmax, pulled
from attentropy.analysis.gradient import _spread
from attentropy.core.errors import ArgumentError, UnsupportedError
from attentropy.core.resolve import AttendOptions
from attentropy.core.weights import L1, Hard, Softmax, Softpick, Weights

KINDS = ("gaussian", "uniform", "laplace")
NORMS = ("inf", "2")
STEPS, STARTS = 12, 4


@dataclass(frozen=True)
class Noise:
    """Noise on each score.

    Attributes:
        scale: sigma, the half width of uniform noise, or Laplace's b; positive.
        kind: "gaussian", "uniform" or "laplace".
        correlation: the share of the variance that the keys of a row have in common; for Gaussian
            noise only.
    """

    scale: float
    kind: str = "gaussian"
    correlation: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ArgumentError("Noise: kind", f"one of {KINDS}", repr(self.kind))
        if not 0 < self.scale < math.inf:
            raise ArgumentError("Noise: scale", "positive and finite", self.scale)
        if not 0 <= self.correlation <= 1:
            raise ArgumentError("Noise: correlation", "in [0, 1]", self.correlation)
        if self.correlation and self.kind != "gaussian":
            raise ArgumentError("Noise: correlation", "0 unless the noise is gaussian", self.kind)

    @property
    def relative_variance(self) -> float:
        """Rho = Var(e^e) / E[e^e]^2 of the part that keys do not share."""
        from attentropy.theory.noise import relative_variance

        return float(relative_variance(self.kind, self.scale * (1 - self.correlation) ** 0.5))

    @property
    def variance(self) -> float:
        """Var(e), including the part that keys share."""
        return self.scale**2 * {"gaussian": 1.0, "uniform": 1 / 3, "laplace": 2.0}[self.kind]

    def draw(self, like: Tensor, generator: torch.Generator) -> Tensor:
        """A sample of the shape of `like` [H,R,K].

        Args:
            like: a tensor [H,R,K].
            generator: of the random numbers.
        """
        here: dict[str, Any] = {"device": generator.device, "dtype": torch.float64}

        def unit(*shape: int) -> Tensor:
            return torch.rand(shape, generator=generator, **here)

        if self.kind == "uniform":
            return (2 * unit(*like.shape) - 1).mul(self.scale).to(like)
        if self.kind == "laplace":
            u = unit(*like.shape) - 0.5
            return (-self.scale * u.sign() * torch.log1p(-2 * u.abs())).to(like)
        own = torch.randn(like.shape, generator=generator, **here)
        common = torch.randn(*like.shape[:-1], 1, generator=generator, **here)
        c = self.correlation
        return (self.scale * ((1 - c) ** 0.5 * own + c**0.5 * common)).to(like)


def measured_error(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    noise: Noise,
    *,
    samples: int = 8,
    seed: int = 0,
    **options: Unpack[AttendOptions],
) -> Tensor:
    """Root mean square of |õ - out| over rows and samples of the noise, [H].

    Args:
        q: queries [B,H,Q,D].
        k: keys [B,Hk,K,D].
        v: values [B,Hk,K,Dv].
        noise: on the scores.
        samples: number of draws.
        seed: of the random numbers.
        options: mask, score, scale, weights, bias, softcap and sink, as in attend().
    """
    if samples < 1:
        raise ArgumentError("measured_error: samples", ">= 1", samples)
    generator = torch.Generator().manual_seed(seed)
    parts = []
    for part in rows(q, k, v, share=3, **options):
        squares = [
            (_moved(part, noise.draw(part.logits, generator)) - part.out).square().sum(-1)
            for _ in range(samples)
        ]
        parts.append(torch.stack(squares).mean(0))
    return collect(parts, q).mean((0, 2)).sqrt()


def _moved(part: WeightRows, delta: Tensor) -> Tensor:
    """The output with `delta` added to the scores, [H,R,Dv]; the mass of a sink stays."""
    if not part.is_softmax:
        return part.weigh(part.logits + delta) @ part.values
    lifted = part.weights.clamp(min=0).log() + delta
    mass = part.weights.sum(-1, keepdim=True)
    p = torch.where(part.seen[..., None], lifted.softmax(-1), 0.0) * mass
    return p @ part.values


def predicted_error(
    q: Tensor, k: Tensor, v: Tensor, noise: Noise, **options: Unpack[AttendOptions]
) -> Tensor:
    """sqrt(rho sum p^2 |v - out|^2 + |rho sum p^2 (v - out)|^2), root mean square over rows, [H].

    First order: right while rho sum p^2 is small; inf where e^noise has no variance. For weights
    other than softmax it is sqrt(Var(e) sum_j |d out / d s_j|^2); noise that keys share adds |sum_j
    d out / d s_j|^2 times its variance under the root; Hard() has no such derivative.

    Args:
        q: queries [B,H,Q,D].
        k: keys [B,Hk,K,D].
        v: values [B,Hk,K,Dv].
        noise: on the scores.
        options: mask, score, scale, weights, bias, softcap and sink, as in attend().
    """
    if not isinstance(kind_of(options), Softmax):
        return _predicted_by_derivative(q, k, v, noise, options)
    rho = noise.relative_variance
    parts = []
    for part in rows(q, k, v, share=2, **options):
        square, out = part.weights.square(), part.out
        drift = square @ part.values - square.sum(-1, keepdim=True) * out
        variance = rho * _spread(square, part.values, out)
        parts.append(variance + (rho * drift).square().sum(-1))
    return collect(parts, q).mean((0, 2)).sqrt()


def _predicted_by_derivative(
    q: Tensor, k: Tensor, v: Tensor, noise: Noise, options: AttendOptions
) -> Tensor:
    if isinstance(kind_of(options), Hard):
        raise UnsupportedError("Hard() jumps: no first order predicts its error; measure it")
    single, common = 1 - noise.correlation, noise.correlation
    parts = []
    for part in rows(q, k, v, share=3, **options):
        total = torch.zeros_like(part.weights[..., 0])
        for slope in derivatives(part.weigh, part.logits, part.values):
            total += single * slope.square().sum(-1) + common * slope.sum(-1).square()
        parts.append(noise.variance * total)
    return collect(parts, q).mean((0, 2)).sqrt()


def predicted_error_dense(
    q: Tensor, k: Tensor, v: Tensor, covariance: Tensor, **options: Unpack[AttendOptions]
) -> Tensor:
    """predicted_error() for Gaussian noise with covariance C between keys, root mean square, [H].

    With p' ~ p e^(C_jj/2), out' its output and M = e^C - 1: variance sum_ij M_ij p'_i p'_j (v_i -
    out').(v_j - out'), bias out' - out - sum_ij M_ij p'_i p'_j (v_j - out'). A constant C has no
    effect.

    Args:
        q: queries [B,H,Q,D].
        k: keys [B,Hk,K,D].
        v: values [B,Hk,K,Dv].
        covariance: C [K,K] of the noise.
        options: mask, score, scale, weights, bias, softcap and sink, as in attend().
    """
    only_softmax(options, "predicted_error_dense")
    c = covariance.double()
    if list(c.shape) != [k.shape[2]] * 2:
        raise ArgumentError("covariance", f"[K,K] with K = {k.shape[2]}", list(c.shape))
    m = torch.expm1(c)
    parts = []
    for part in rows(q, k, v, share=2 + v.shape[-1], **options):
        p = part.weights * (c.diagonal() / 2 - c.diagonal().max() / 2).exp()
        p = p / p.sum(-1, keepdim=True).clamp(min=1e-300)
        centre = p @ part.values
        g = p[..., None] * (part.values[:, None] - centre[:, :, None])
        variance = torch.einsum("hrid,ij,hrjd->hr", g, m, g)
        bias = centre - part.out - torch.einsum("hri,ij,hrjd->hrd", p, m, g)
        parts.append(variance.clamp(min=0) + bias.square().sum(-1))
    return collect(parts, q).mean((0, 2)).sqrt()


def worst_error(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    radius: float,
    *,
    norm: str = "inf",
    **options: Unpack[AttendOptions],
) -> Tensor:
    """The largest |õ - out| found over changes of a row's scores within a ball, [B,H,Q].

    A stationary change solves delta = radius * sign(g) (ball of the largest entry) or radius *
    g/|g| (Euclidean ball), where g_j = d <õ, w> / d s_j, of softmax p_j <v_j - õ, w>, and w is the
    direction of õ - out itself: a fixed target direction finds less. Ascent starts at the leading
    singular vectors of the Jacobian and at the keys that matter most. Hard() has no derivative.

    Args:
        q: queries [B,H,Q,D].
        k: keys [B,Hk,K,D].
        v: values [B,Hk,K,Dv].
        radius: of the ball of changes; positive.
        norm: "inf" bounds the largest entry, "2" the Euclidean norm.
        options: mask, score, scale, weights, bias, softcap and sink, as in attend().
    """
    steepest = _steepest(radius, norm)
    if isinstance(kind_of(options), Hard):
        raise UnsupportedError("Hard() jumps: no ascent finds its worst error")
    softmax = isinstance(kind_of(options), Softmax)
    starts, ascend = (
        (_starts, _ascend) if softmax else (_starts_by_derivative, _ascend_by_derivative)
    )
    parts = []
    for part in rows(q, k, v, share=4 if softmax else 4 + v.shape[-1], **options):
        best = torch.zeros_like(part.weights[..., 0])
        for start in starts(part):
            best = torch.maximum(best, ascend(part, start, steepest))
        parts.append(best)
    return collect(parts, q)


def _steepest(radius: float, norm: str) -> Callable[[Tensor], Tensor]:
    if norm not in NORMS:
        raise ArgumentError("norm", f"one of {NORMS}", repr(norm))
    if not 0 < radius < math.inf:
        raise ArgumentError("radius", "positive and finite", radius)
    if norm == "inf":
        return lambda g: radius * g.sign()
    return lambda g: radius * g / g.norm(dim=-1, keepdim=True).clamp(min=1e-300)


def _starts(part: WeightRows) -> list[Tensor]:
    """Directions [H,R,Dv] of the output to begin with."""
    p, v, out = part.weights, part.values, part.out
    width = v.shape[-1]
    second = torch.zeros(*out.shape, width, dtype=out.dtype, device=out.device)
    for a in range(width):
        left = p.square() * (v[:, None, :, a] - out[..., a, None])
        second[..., a, :] = left @ v - left.sum(-1, keepdim=True) * out
    vectors = torch.linalg.eigh(second)[1]
    lead = [sign * vectors[..., -i] for i in range(1, min(width, STARTS) + 1) for sign in (1, -1)]
    distance = torch.cdist(out, v)
    best = (p * distance).topk(min(STARTS, p.shape[-1]), -1).indices
    for j in best.unbind(-1):
        toward = v.gather(1, j[..., None].expand(*j.shape, width)) - out
        lead += [toward, -toward]
    return lead


def _ascend(part: WeightRows, w: Tensor, steepest: Callable[[Tensor], Tensor]) -> Tensor:
    """The largest error on the way to a stationary change, [H,R]."""
    p, moved = part.weights, part.out
    mass = p.sum(-1, keepdim=True)
    best = torch.zeros_like(w[..., 0])
    for _ in range(STEPS):
        pull = w @ part.values.mT - (w * moved).sum(-1, keepdim=True)
        delta = steepest(p * pull)
        # the change is one of the clean scores
        tilted = part.weights * (delta - delta.amax(-1, keepdim=True)).exp()
        p = mass * tilted / tilted.sum(-1, keepdim=True).clamp(min=1e-300)
        moved = p @ part.values
        w = moved - part.out
        best = torch.maximum(best, w.norm(dim=-1))
    return best


def _starts_by_derivative(part: WeightRows) -> list[Tensor]:
    """Directions [H,R,Dv] of the output to begin with, for any weights."""
    slopes = torch.stack(list(derivatives(part.weigh, part.logits, part.values)), -1)
    width = slopes.shape[-1]
    vectors = torch.linalg.eigh(slopes.mT @ slopes)[1]
    lead = [sign * vectors[..., -i] for i in range(1, min(width, STARTS) + 1) for sign in (1, -1)]
    best = slopes.norm(dim=-1).topk(min(STARTS, slopes.shape[-2]), -1).indices
    for j in best.unbind(-1):
        toward = slopes.gather(2, j[..., None, None].expand(*j.shape, 1, width))[..., 0, :]
        lead += [toward, -toward]
    near = part.logits.topk(min(STARTS, part.logits.shape[-1]), -1).indices
    for j in near.unbind(-1):  # keys without weight have no slope, and may get one
        toward = part.values.gather(1, j[..., None].expand(*j.shape, width)) - part.out
        lead += [toward, -toward]
    return lead


def _ascend_by_derivative(
    part: WeightRows, w: Tensor, steepest: Callable[[Tensor], Tensor]
) -> Tensor:
    """The largest error on the way to a stationary change, [H,R], for any weights.

    Keys without a slope move by a hair towards w, which brings those in that would help.
    """
    s, best = part.logits, torch.zeros_like(w[..., 0])
    sums_to_one = part.kind.probabilities or isinstance(part.kind, L1 | Softpick)
    for _ in range(STEPS):
        slope = pulled(part.weigh, s, part.values, w)
        hair = w @ part.values.mT
        if sums_to_one:  # a little beyond the output: where it is a value, that key loses
            centre = part.weigh(s) @ part.values + 1e-3 * w
            hair = hair - (w * centre).sum(-1, keepdim=True)
        hair = hair.masked_fill(part.logits.isneginf(), 0.0)
        s = part.logits + steepest(slope + 1e-9 * hair)
        w = part.weigh(s) @ part.values - part.out
        best = torch.maximum(best, w.norm(dim=-1))
    return best


def certified_error(
    v: Tensor,
    radius: float,
    *,
    norm: str = "inf",
    heads: int | None = None,
    weights: Weights | None = None,
) -> Tensor:
    """diam(V) * tanh(range/4), which no change of scores within the ball can exceed, [B,H].

    The range of a change is 2 * radius in the ball of the largest entry and sqrt(2) * radius in the
    Euclidean one. For probabilities other than softmax it is diam(V), which no distance between two
    means of values exceeds; for weights that are not probabilities no bound is known, and it is
    inf.

    Args:
        v: values [B,Hk,K,Dv].
        radius: of the ball of changes; positive.
        norm: as in worst_error().
        heads: H, to repeat the heads of v for grouped queries.
        weights: Softmax() if not given.
    """
    _steepest(radius, norm)
    spread = 2 * radius if norm == "inf" else 2**0.5 * radius
    share = math.tanh(spread / 4)
    if weights is not None and not isinstance(weights, Softmax):
        share = 1.0 if weights.probabilities else math.inf
    bound = diameter(v) * share
    return bound if heads is None else bound.repeat_interleave(heads // v.shape[1], 1)


def diameter(v: Tensor) -> Tensor:
    """Max |v_i - v_j| over all pairs of values, [B,Hk], by blocks.

    Args:
        v: values [B,Hk,K,Dv].
    """
    if not isinstance(v, Tensor) or v.dim() != 4:
        got = list(v.shape) if isinstance(v, Tensor) else type(v).__name__
        raise ArgumentError("v", "of shape [B,Hk,K,Dv]", got)
    x = v.detach().double()
    best = torch.zeros(x.shape[:2], dtype=x.dtype, device=x.device)
    step = max(1, (1 << 20) // max(1, x.shape[0] * x.shape[1] * x.shape[2]))
    for start in range(0, x.shape[2], step):
        best = torch.maximum(best, torch.cdist(x[:, :, start : start + step], x).amax((2, 3)))
    return best


class Robustness(NamedTuple):
    """Errors under changes of the scores of at most `radius` each.

    Attributes:
        measured: root mean square under uniform noise, [H].
        predicted: the same to first order, [H].
        worst: the largest found over rows, [H].
        certified: what no error exceeds, [H].
    """

    measured: Tensor
    predicted: Tensor
    worst: Tensor
    certified: Tensor


def compare_errors(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    radius: float,
    *,
    samples: int = 8,
    **options: Unpack[AttendOptions],
) -> Robustness:
    """Random, predicted, worst and certified error, all for changes of at most `radius`.

    Args:
        q: queries [B,H,Q,D].
        k: keys [B,Hk,K,D].
        v: values [B,Hk,K,Dv].
        radius: of the ball of changes; positive.
        samples: draws of the noise.
        options: mask, score, scale, weights, bias, softcap and sink, as in attend().
    """
    noise = Noise(radius, "uniform")
    return Robustness(
        measured_error(q, k, v, noise, samples=samples, **options),
        predicted_error(q, k, v, noise, **options),
        worst_error(q, k, v, radius, **options).amax((0, 2)),
        certified_error(v, radius, heads=q.shape[1], weights=options.get("weights")).amax(0),
    )
