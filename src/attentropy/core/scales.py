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

    The log n scale that Qwen's first models apply beyond their trained length (`use_logn_attn`).

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
class StepLog:
    """(1 + beta * log(1 + floor((n - start) / reference))) / sqrt(d): constant up to `reference`.

    Llama 4 multiplies the queries of its layers without positions by it with reference = 8192,
    beta = 0.1 and start = 0; Ministral 3 all queries with its own reference and start = 1, because
    it divides the position n - 1.

    Attributes:
        reference: the length of one step; at least 1.
        beta: of the logarithm.
        start: subtracted from the number of keys first.

    >>> (StepLog()(64, torch.tensor([8191, 8192, 65536])) * 8).tolist()
    [1.0, 1.0693147182464..., 1.2197225093841...]
    """

    reference: int = 8192
    beta: float = 0.1
    start: int = 0

    def __post_init__(self) -> None:
        _at_least("StepLog: reference", self.reference, 1)
        _finite("StepLog: beta", self.beta)
        _at_least("StepLog: start", self.start, 0)

    def __call__(self, head_dim: int, visible: Tensor) -> Tensor:
        steps = ((_float(visible) - self.start).clamp(min=0) / self.reference).floor()
        return (1 + self.beta * steps.log1p()) * head_dim**-0.5


@dataclass(frozen=True)
class PowerLog:
    """(delta + beta * (log(n + shift))^gamma) / sqrt(d): the scale of ASEntmax, for Entmax weights.

    Entmax of a growing row needs a scale that grows like a power of log n; which one is learned or
    fitted for each head (Vasylenko et al., 2025, arXiv:2506.16640; their code has shift = 1).
    `nn.ASEntmaxAttention` learns beta and gamma.

    Attributes:
        beta: of the power of log n: a number, or one for each head.
        gamma: the power: a number, or one for each head; negative ones need a shift.
        delta: what does not depend on n.
        shift: added to the number of keys; 1 keeps the logarithm above 0.
    """

    beta: float | tuple[float, ...]
    gamma: float | tuple[float, ...] = 1.0
    delta: float = 1.0
    shift: int = 0

    def __post_init__(self) -> None:
        for name in ("beta", "gamma"):
            given = getattr(self, name)
            for one in given if isinstance(given, tuple) else (given,):
                _finite(f"PowerLog: {name}", one)
                if name == "gamma" and one < 0 and self.shift == 0:
                    raise ArgumentError("PowerLog: gamma", ">= 0 without a shift: log 1 is 0", one)
        _finite("PowerLog: delta", self.delta)
        _at_least("PowerLog: shift", self.shift, 0)

    def __call__(self, head_dim: int, visible: Tensor) -> Tensor:
        log_n = _log(_float(visible).clamp(min=1) + self.shift)
        beta, gamma = (_per_head(x, log_n) for x in (self.beta, self.gamma))
        return (self.delta + beta * log_n**gamma) * head_dim**-0.5


@dataclass(frozen=True)
class InfoScale:
    """sqrt((1 - n^(-2/d)) / (1 - reference^(-2/d))) / sqrt(d): longer rows, same information.

    Grows slowly and is bounded: at most 1 / sqrt(1 - reference^(-2/d)) times 1 / sqrt(d). With
    d = 64 and reference = 512 that is 2.38; a row of 2,048 keys gets 1.09 (Li et al., 2025,
    arXiv:2501.08570).

    Attributes:
        reference: the number of keys that the model was trained with; at least 2.

    >>> (InfoScale(512)(64, torch.tensor([128, 512, 2048])) * 8).tolist()
    [0.8912..., 1.0, 1.0940...]
    """

    reference: int

    def __post_init__(self) -> None:
        _at_least("InfoScale: reference", self.reference, 2)

    def __call__(self, head_dim: int, visible: Tensor) -> Tensor:
        kept = -torch.expm1(_log(visible) * (-2 / head_dim))
        trained = -math.expm1(math.log(self.reference) * (-2 / head_dim))
        return (kept / trained).sqrt() * head_dim**-0.5


@dataclass(frozen=True)
class CosScale:
    """value, or value * growth(d, n) * sqrt(d): the scale of cosines, for `score=Cosine()`.

    The larger the value, the fewer keys a row attends to. The models that its authors released have
    32 and 128, times InfoScale beyond the trained length (Li et al., 2025, arXiv:2501.08570).

    Attributes:
        value: of a cosine of 1; positive.
        growth: a rule c(n) / sqrt(d), such as InfoScale(512), whose c(n) multiplies it; or None.

    >>> CosScale(16.0, growth=LogLengthFrom(64))(32, torch.tensor([64, 4096]))
    tensor([16., 32.])
    """

    value: float = 16.0
    growth: ScaleRule | None = None

    def __post_init__(self) -> None:
        _positive("CosScale: value", self.value)
        if self.growth is not None and not callable(self.growth):
            raise ArgumentTypeError("CosScale: growth", "a scale rule or None", repr(self.growth))

    def __call__(self, head_dim: int, visible: Tensor) -> Tensor:
        if self.growth is None:
            return _constant(self.value, visible)
        return self.growth(head_dim, visible) * (self.value * head_dim**0.5)


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
        spread = _per_head(self.spread, gained)
        return (1 + 2 * gained / spread**2).clamp(min=0.0).sqrt() * head_dim**-0.5


def _per_head(value: float | tuple[float, ...], like: Tensor) -> Tensor:
    """One number, or a column of one for each head."""
    found = torch.as_tensor(value, dtype=like.dtype, device=like.device)
    return found.view(-1, 1) if found.dim() else found


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
