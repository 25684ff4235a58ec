"""Logit multipliers. A rule sees head_dim and visible (keys per query), and nothing else.

`rule(head_dim, visible)` gives a tensor that broadcasts against `visible` [B,H,Q]; because the
count of visible keys comes from the mask, causal, sparse and cross attention get their own n.
One visible key gives 0 for rules in log n, harmlessly: such a row has one weight, and it is 1.

    >>> import torch
    >>> LogLength()(64, torch.tensor([1, 64, 4096]))
    tensor([0.0000, 0.0650, 0.1300])
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real

import torch
from torch import Tensor

from attentropy.core.errors import ArgumentError, ArgumentTypeError

ScaleRule = Callable[[int, Tensor], Tensor]


@dataclass(frozen=True)
class InverseSqrt:
    """1 / sqrt(d)."""

    def __call__(self, head_dim: int, visible: Tensor) -> Tensor:
        return _constant(head_dim**-0.5, visible)


@dataclass(frozen=True)
class Constant:
    """`value`, whatever the width and the length.

    Attributes:
        value: the multiplier; finite.
    """

    value: float

    def __post_init__(self) -> None:
        _finite("Constant: value", self.value)

    def __call__(self, head_dim: int, visible: Tensor) -> Tensor:
        return _constant(self.value, visible)


@dataclass(frozen=True)
class Temperature:
    """1 / tau: the logits are the scores divided by tau, without a factor of the width.

    Attributes:
        tau: positive.
    """

    tau: float

    def __post_init__(self) -> None:
        _positive("Temperature: tau", self.tau)

    def __call__(self, head_dim: int, visible: Tensor) -> Tensor:
        return _constant(1 / self.tau, visible)


@dataclass(frozen=True)
class LogLength:
    """kappa * log n / d; n is the number of visible keys, or `length` for every row.

    Attributes:
        kappa: positive.
        length: n for every row; None counts the visible keys.
    """

    kappa: float = 1.0
    length: int | None = None

    def __post_init__(self) -> None:
        _positive("LogLength: kappa", self.kappa)
        if self.length is not None:
            _at_least("LogLength: length", self.length, 1)

    def __call__(self, head_dim: int, visible: Tensor) -> Tensor:
        if self.length is not None:
            return _constant(self.kappa * math.log(self.length) / head_dim, visible)
        return _log(visible) * (self.kappa / head_dim)


@dataclass(frozen=True)
class LogLengthFrom:
    """max(1, log n / log reference) / sqrt(d), for models trained at `reference` keys.

    Attributes:
        reference: the number of keys that the model was trained with; at least 2.
    """

    reference: int

    def __post_init__(self) -> None:
        _at_least("LogLengthFrom: reference", self.reference, 2)

    def __call__(self, head_dim: int, visible: Tensor) -> Tensor:
        growth = _log(visible) / math.log(self.reference)
        return growth.clamp(min=1.0) * head_dim**-0.5


@dataclass(frozen=True)
class Mixed:
    """alpha / sqrt(d) + beta * log n / d.

    Attributes:
        alpha: of 1 / sqrt(d).
        beta: of log n / d.
    """

    alpha: float = 1.0
    beta: float = 0.1

    def __post_init__(self) -> None:
        _finite("Mixed: alpha", self.alpha)
        _finite("Mixed: beta", self.beta)

    def __call__(self, head_dim: int, visible: Tensor) -> Tensor:
        return _log(visible) * (self.beta / head_dim) + self.alpha * head_dim**-0.5


@dataclass(frozen=True)
class PowerLength:
    """(n / reference)^exponent / sqrt(d): what bounded scores need to hold their entropy.

    Attributes:
        exponent: of the length.
        reference: the number of keys at which it is 1 / sqrt(d).
    """

    exponent: float
    reference: int

    def __post_init__(self) -> None:
        _finite("PowerLength: exponent", self.exponent)
        _at_least("PowerLength: reference", self.reference, 1)

    def __call__(self, head_dim: int, visible: Tensor) -> Tensor:
        ratio = _float(visible).clamp(min=1) / self.reference
        return ratio**self.exponent * head_dim**-0.5


@dataclass(frozen=True)
class HoldEntropy:
    """sqrt(max(0, 1 + 2 log(n / reference) / spread^2)) / sqrt(d).

    Holds the entropy of Gaussian scores at its value for `reference` keys.

    Attributes:
        reference: the number of keys at which it is 1 / sqrt(d).
        spread: standard deviation of a row's scaled logits there: a number, or one for each head.
    """

    reference: int
    spread: float | tuple[float, ...]

    def __post_init__(self) -> None:
        _at_least("HoldEntropy: reference", self.reference, 1)
        if hasattr(self.spread, "tolist"):  # a tensor, an array, a number of numpy
            object.__setattr__(self, "spread", self.spread.tolist())
        if isinstance(self.spread, list):
            object.__setattr__(self, "spread", tuple(self.spread))
        for one in self.spread if isinstance(self.spread, tuple) else (self.spread,):
            _positive("HoldEntropy: spread", one)

    def __call__(self, head_dim: int, visible: Tensor) -> Tensor:
        gained = _log(visible) - math.log(self.reference)
        spread = torch.as_tensor(self.spread, dtype=gained.dtype, device=gained.device)
        if spread.dim():
            spread = spread.view(-1, 1)
        return (1 + 2 * gained / spread**2).clamp(min=0.0).sqrt() * head_dim**-0.5


def _float(visible: Tensor | float) -> Tensor:
    """Counts as floats; one number is a count too."""
    n = visible if isinstance(visible, Tensor) else torch.tensor(float(visible))
    return n if n.is_floating_point() else n.to(torch.float32)


def _log(visible: Tensor) -> Tensor:
    """Log n, and 0 for rows that see nothing."""
    return _float(visible).clamp(min=1).log()


def _constant(value: float, visible: Tensor) -> Tensor:
    return torch.full_like(_float(visible), float(value))


def _finite(name: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ArgumentTypeError(name, "a number", repr(value))
    if not math.isfinite(value):
        raise ArgumentError(name, "finite", value)


def _positive(name: str, value: float) -> None:
    _finite(name, value)
    if value <= 0:
        raise ArgumentError(name, "> 0", value)


def _at_least(name: str, value: int, least: int) -> None:
    _finite(name, value)
    if value < least:
        raise ArgumentError(name, f">= {least}", value)
