"""How do logits become weights? Each class of this module defines it for one row s of logits.

    Softmax       e^s / sum e^s
    Gumbel        softmax((s + g) / tau), g standard Gumbel noise
    Hard          1 at the largest logit, 0 elsewhere
    ReluSquared   max(s, 0)^2 / visible keys
    Linear        s
    L1, L2        f(s) / sum |f(s)|,  f(s) / sqrt(sum f(s)^2), f linear or relu squared
    Kernelised    phi(q) . phi(k) / sum phi(q) . phi(k)
    Decay         rate^(i - j) for keys j up to the query's position i
    Sigmoid       1 / (1 + e^-(s + bias))
    Entmax        max((alpha - 1) s - t, 0)^(1 / (alpha - 1)), t such that they sum to 1
    Sparsemax     max(s - t, 0), t such that they sum to 1
    Softpick      max(e^s - 1, 0) / sum |e^s - 1|

Softmax, Gumbel, Hard, Entmax and Sparsemax are probabilities. The others have no entropy; for
Kernelised, which are probabilities, entropy would cost quadratic time, and is None as well. The
log-sum-exp belongs to the first three alone.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from numbers import Real
from typing import ClassVar

import torch
from torch import Tensor

from attentropy.core.errors import ArgumentError, ArgumentTypeError

Feature = Callable[[Tensor], Tensor]


class Weights:
    """Base of the values of this module, and of weights of your own.

    Your subclass has a method `__call__(self, logits)`, which gives the weight of each
    logit by itself, in a tensor of the same shape. The reference and the streaming kernel call it,
    and differentiate it. See docs/howto/own-parts.md.
    """

    probabilities: ClassVar[bool] = False


@dataclass(frozen=True)
class Softmax(Weights):
    """e^s / sum e^s."""

    probabilities: ClassVar[bool] = True


@dataclass(frozen=True, eq=False)
class Gumbel(Weights):
    """softmax((s + g) / tau) with standard Gumbel noise g; statistics are those of these weights.

    A hard output takes the value of the key with the largest s + g, which is an exact sample of
    softmax(s); gradients are those of the soft weights.

    Attributes:
        tau: the temperature; positive.
        hard: whether the output takes the value of one key.
        generator: of the noise, on the CPU; makes it reproducible.
    """

    tau: float = 1.0
    hard: bool = False
    generator: torch.Generator | None = field(default=None, repr=False)
    probabilities: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if isinstance(self.tau, bool) or not isinstance(self.tau, Real):
            raise ArgumentTypeError("Gumbel: tau", "a number", repr(self.tau))
        if not 0 < self.tau < math.inf:
            raise ArgumentError("Gumbel: tau", "positive and finite", self.tau)
        if self.generator is not None and not isinstance(self.generator, torch.Generator):
            rule = "a torch.Generator or None"
            raise ArgumentTypeError("Gumbel: generator", rule, repr(self.generator))


@dataclass(frozen=True)
class Hard(Weights):
    """1 at the largest logit, 0 elsewhere; entropy 0.

    Attributes:
        straight_through: whether queries and keys get the gradient of softmax, or none.
    """

    straight_through: bool = False
    probabilities: ClassVar[bool] = True


@dataclass(frozen=True)
class ReluSquared(Weights):
    """max(s, 0)^2 / visible keys."""


@dataclass(frozen=True)
class Linear(Weights):
    """The logits themselves."""


@dataclass(frozen=True)
class L1(Weights):
    """f / sum |f|, with f the unnormalised weights of `of`; a row of zeros stays zero.

    Attributes:
        of: Linear() or ReluSquared().
    """

    of: Linear | ReluSquared = field(default_factory=Linear)

    def __post_init__(self) -> None:
        _check_inner("L1", self.of)


@dataclass(frozen=True)
class L2(Weights):
    """f / sqrt(sum f^2), with f the unnormalised weights of `of`; a row of zeros stays zero.

    Attributes:
        of: Linear() or ReluSquared().
    """

    of: Linear | ReluSquared = field(default_factory=Linear)

    def __post_init__(self) -> None:
        _check_inner("L2", self.of)


def _elu_plus_one(x: Tensor) -> Tensor:
    # not F.elu: its backward fails under torch.compile's aot_eager on some layouts
    return torch.where(x > 0, x + 1, x.clamp(max=0).exp())


FEATURES: dict[str, Feature] = {
    "elu": _elu_plus_one,
    "elu+1": _elu_plus_one,
    "relu": torch.relu,
    "exp": torch.exp,
}


@dataclass(frozen=True)
class Kernelised(Weights):
    """phi(q) . phi(k) / sum phi(q) . phi(k), in linear time for causal and unmasked attention.

    There are no logits: scale, bias, softcap and sinks do not apply.

    Attributes:
        feature: "elu" or "elu+1", "relu", "exp", or a function with non-negative values.
    """

    feature: str | Feature = "elu"

    def __post_init__(self) -> None:
        if isinstance(self.feature, str) and self.feature not in FEATURES:
            rule = f"a function or one of {sorted(FEATURES)}"
            raise ArgumentError("Kernelised: feature", rule, repr(self.feature))
        if not isinstance(self.feature, str) and not callable(self.feature):
            raise ArgumentTypeError(
                "Kernelised: feature", f"a function or one of {sorted(FEATURES)}", self.feature
            )

    def features(self, q: Tensor, k: Tensor, *, whole: bool = True) -> tuple[Tensor, Tensor]:
        """phi(q) and phi(k) in float32 or better, about 1 in size.

        Each query, and the keys of each head, are divided by a number that the weights do not
        depend on, so that small features do not underflow in products.

        Args:
            q: queries [B,H,Q,D].
            k: keys [B,Hk,K,D].
            whole: False where k is a part of the keys, whose features stay as they are: other
                parts would be divided by another number.
        """
        of_q, of_k = (self.phi(x if x.dtype == torch.float64 else x.float()) for x in (q, k))
        return _by_largest(of_q, (-1,)), _by_largest(of_k, (-2, -1)) if whole else of_k

    def phi(self, x: Tensor) -> Tensor:
        """The feature map, checked to keep the leading shape.

        Args:
            x: queries or keys.
        """
        mapped = FEATURES[self.feature](x) if isinstance(self.feature, str) else self.feature(x)
        if not isinstance(mapped, Tensor):
            raise ArgumentTypeError("Kernelised: feature", "a map to tensors", repr(mapped))
        if mapped.shape[:-1] != x.shape[:-1]:
            rule = f"a map that keeps the leading shape {list(x.shape[:-1])}"
            raise ArgumentError("Kernelised: feature", rule, list(mapped.shape))
        return mapped


def _by_largest(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    """x divided by a power of two near its largest finite entry along `dims`."""
    if not x.numel():
        return x
    size = x.detach().nan_to_num(0.0, 0.0, 0.0).abs().amax(dims, keepdim=True)
    return x / size.clamp(min=torch.finfo(x.dtype).tiny).log2().floor().exp2()


@dataclass(frozen=True, eq=False)
class Decay(Weights):
    """rate^(i - j) for keys up to the query's position i, none beyond: a linear recurrence.

    Queries, keys and all that makes logits are not used; statistics count the keys up to the query.

    Attributes:
        rate: in (0, 1]; a number, or a tensor [H].
    """

    rate: float | Tensor

    def __post_init__(self) -> None:
        if isinstance(self.rate, Tensor):
            if self.rate.dim() > 1:
                rule = "a number or of shape [H]"
                raise ArgumentError("Decay: rate", rule, list(self.rate.shape))
            if torch.compiler.is_compiling() or self.rate.is_meta:
                return
        elif isinstance(self.rate, bool) or not isinstance(self.rate, Real | list | tuple):
            rule = "a number or a tensor of shape [H]"
            raise ArgumentTypeError("Decay: rate", rule, repr(self.rate))
        given = isinstance(self.rate, Tensor)
        rates = self.rate if given else torch.as_tensor(self.rate, device="cpu")
        if not bool(((rates > 0) & (rates <= 1)).all()):
            raise ArgumentError("Decay: rate", "in (0, 1]", rates.tolist())

    def of_heads(self, heads: int, *, like: Tensor) -> Tensor:
        """The rates as [H].

        Args:
            heads: H.
            like: a tensor of the dtype and device wanted.
        """
        rate = torch.as_tensor(self.rate, dtype=like.dtype, device=like.device)
        if rate.dim() and len(rate) not in (1, heads):
            raise ArgumentError("Decay: rate", f"a number or of shape [{heads}]", list(rate.shape))
        return rate.expand(heads)


@dataclass(frozen=True)
class Sigmoid(Weights):
    """1 / (1 + e^-(s + bias)): every key is weighed by itself, and a row need not sum to 1.

    With bias = -log n a row of n keys starts with a mass near 1, as its authors advise
    (Ramapuram et al., 2024, arXiv:2409.04431).

    Attributes:
        bias: added to every logit; finite.
    """

    bias: float = 0.0

    def __post_init__(self) -> None:
        _check_number("Sigmoid: bias", self.bias)

    def __call__(self, logits: Tensor) -> Tensor:
        """The weight of each logit.

        Args:
            logits: of any shape.
        """
        return (logits + self.bias).sigmoid()


class RowWeights(Weights):
    """Base of weights that need a whole row of logits at once."""

    def of_rows(self, logits: Tensor) -> Tensor:
        """Weights of rows of logits along the last axis; 0 where a logit is -inf.

        Args:
            logits: final logits; -inf hides a key.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Entmax(RowWeights):
    """max((alpha - 1) s - t, 0)^(1 / (alpha - 1)), with t such that the row sums to 1.

    Keys far below the largest logit get a weight of exactly 0. Softmax is the limit of alpha
    towards 1 (Peters et al., 2019, arXiv:1905.05702).

    Attributes:
        alpha: in (1, 2]; 2 is Sparsemax.
    """

    alpha: float = 1.5
    probabilities: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_number("Entmax: alpha", self.alpha)
        if not 1 < self.alpha <= 2:
            rule = "in (1, 2]; alpha = 1 is Softmax()"
            raise ArgumentError("Entmax: alpha", rule, self.alpha)

    def of_rows(self, logits: Tensor) -> Tensor:
        """Weights of rows of logits along the last axis; 0 where a logit is -inf.

        Args:
            logits: final logits; -inf hides a key.
        """
        return _entmax(logits, self.alpha)


@dataclass(frozen=True)
class Sparsemax(RowWeights):
    """max(s - t, 0), with t such that the row sums to 1: the nearest point of the simplex.

    Entmax with alpha = 2 (Martins and Astudillo, 2016, arXiv:1602.02068).
    """

    probabilities: ClassVar[bool] = True

    def of_rows(self, logits: Tensor) -> Tensor:
        """Weights of rows of logits along the last axis; 0 where a logit is -inf.

        Args:
            logits: final logits; -inf hides a key.
        """
        return _entmax(logits, 2.0)


@dataclass(frozen=True)
class Softpick(RowWeights):
    """max(e^s - 1, 0) / (sum |e^s - 1| + eps): rows may sum to less than 1, so none needs a sink.

    As published, eps is added after e^max is divided out (Zuhri et al., 2025, arXiv:2504.20966).

    Attributes:
        eps: keeps rows of zeros from 0 / 0; not negative.
    """

    eps: float = 1e-6

    def __post_init__(self) -> None:
        _check_number("Softpick: eps", self.eps)
        if self.eps < 0:
            raise ArgumentError("Softpick: eps", ">= 0", self.eps)

    def of_rows(self, logits: Tensor) -> Tensor:
        """Weights of rows of logits along the last axis; 0 where a logit is -inf.

        Args:
            logits: final logits; -inf hides a key.
        """
        hidden = logits.isneginf()
        s = logits.masked_fill(hidden, 0.0)
        top = s.amax(-1, keepdim=True).clamp(min=0.0)
        above = (s.clamp(min=0.0) - top).exp() * -(-s.clamp(min=0.0)).expm1()
        below = (-top).exp() * s.clamp(max=0.0).expm1()
        size = (above - below).sum(-1, keepdim=True) + self.eps
        return above / size.masked_fill(size == 0, 1.0)


def _entmax(logits: Tensor, alpha: float) -> Tensor:
    """Entmax of rows: the threshold by bisection, then two steps of Newton that gradients follow.

    The sum of the weights is convex and falls in the threshold, so that steps from below stay
    below; two of them carry first and second derivatives of the threshold exactly.
    """
    top = logits.detach().amax(-1, keepdim=True)
    lost = ~(top < torch.inf)  # NaN or inf: such rows have no weights
    z = (logits - top.masked_fill(top.isinf(), 0.0)) * (alpha - 1)
    power = 1 / (alpha - 1)
    with torch.no_grad():
        threshold = torch.full_like(top, -1.0)
        for step in range(1, 31):
            higher = threshold + 0.5**step
            threshold = torch.where(_above(z, higher, power).sum(-1, True) >= 1, higher, threshold)
    for _ in range(2):
        slope = power * _above(z, threshold, power - 1).sum(-1, keepdim=True)
        excess = _above(z, threshold, power).sum(-1, keepdim=True) - 1
        threshold = threshold + excess / slope.masked_fill(slope == 0, 1.0)
    return _above(z, threshold, power).masked_fill(lost, torch.nan)


def _above(z: Tensor, threshold: Tensor, power: float) -> Tensor:
    """max(z - threshold, 0)^power, and 0 with a gradient of 0 where that is 0."""
    over = z - threshold
    support = over > 0
    return over.masked_fill(~support, 1.0).pow(power).masked_fill(~support, 0.0)


def squares(weights: Weights) -> bool:
    """Whether unnormalised weights are squares of positive logits.

    Args:
        weights: of a call.
    """
    return isinstance(weights.of if isinstance(weights, L1 | L2) else weights, ReluSquared)


Own = Callable[[Tensor], Tensor]
_KINDS = (Softmax, Gumbel, Hard, ReluSquared, Linear, L1, L2, Kernelised, Decay, RowWeights)


def own(weights: Weights) -> Own | None:
    """The function of single logits if the caller defined the weights; None for other weights.

    Args:
        weights: of a call.
    """
    if isinstance(weights, _KINDS) or not callable(weights):
        return None

    def weigh(logits: Tensor) -> Tensor:
        found = weights(logits)
        if not isinstance(found, Tensor) or found.shape != logits.shape:
            got = list(found.shape) if isinstance(found, Tensor) else repr(found)
            rule = f"a map of logits to a tensor of their shape {list(logits.shape)}"
            raise ArgumentError(f"weights {type(weights).__name__}", rule, got)
        return found

    return weigh


def check_weights(weights: object) -> None:
    """Raise unless these are weights of this module, or your own weights with `__call__`.

    Args:
        weights: the argument of the caller.
    """
    if not isinstance(weights, Weights):
        raise ArgumentTypeError("weights", "a value of attentropy.core.weights", repr(weights))
    if isinstance(weights, _KINDS) and callable(weights):
        kind = next(one.__name__ for one in _KINDS if isinstance(weights, one))
        rule = f"a subclass of Weights itself, not of {kind}, if it is to be called"
        raise ArgumentTypeError("weights", rule, repr(weights))
    if not isinstance(weights, _KINDS) and (not callable(weights) or weights.probabilities):
        rule = "a value of attentropy.core.weights, or weights of your own: a subclass of Weights "
        rule += "with a method __call__(logits), and no probabilities"
        raise ArgumentTypeError("weights", rule, repr(weights))


def _check_number(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ArgumentTypeError(name, "a number", repr(value))
    if not math.isfinite(value):
        raise ArgumentError(name, "finite", value)


def _check_inner(owner: str, of: object) -> None:
    if not isinstance(of, Linear | ReluSquared):
        raise ArgumentTypeError(f"{owner}: of", "Linear() or ReluSquared()", repr(of))
