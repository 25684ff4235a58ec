"""Rotary positions, and how to stretch them beyond the trained length.

A pair (x_i, x_(i+d/2)) of a query or key at position n is turned by the angle n * w_i with
w_i = base^(-2i/d), so that q . k depends on the distance of the two only.

    None             the plain frequencies
    Interpolated(s)  w_i / s: positions are squeezed
    NTK(s)           base * s^(d/(d-2)) for base: the slowest wave is squeezed s-fold, the
                     fastest not at all
    YaRN(s, n)       squeezed where a wave turns less than `slow` times in n positions, plain where
                     it turns more than `fast` times; queries and keys times 0.1 log(s) + 1
"""

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from attentropy.core.errors import ArgumentError, ArgumentTypeError
from attentropy.nn._checks import count, number
from attentropy.nn.positions.encodings import Positions


class Waves(NamedTuple):
    """What turns queries and keys.

    Attributes:
        frequencies: [D/2].
        factor: on queries and on keys.
    """

    frequencies: Tensor
    factor: float


class Scaling(Protocol):
    """What RotaryPositions asks of a scaling."""

    def waves(self, width: int, base: float) -> Waves:
        """Frequencies and the factor for heads of one width.

        Args:
            width: of heads; even.
            base: of the plain frequencies.
        """
        ...


def plain(width: int, base: float) -> Tensor:
    """base^(-2i/d), i = 0 .. d/2 - 1, in float64.

    Args:
        width: of heads; even.
        base: of the plain frequencies.
    """
    return base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)


@dataclass(frozen=True)
class Interpolated:
    """Position interpolation: every frequency divided by `factor`.

    Attributes:
        factor: how many times longer the context becomes; at least 1.
    """

    factor: float

    def __post_init__(self) -> None:
        _stretch("Interpolated", self.factor)

    def waves(self, width: int, base: float) -> Waves:
        """w_i / s.

        Args:
            width: of heads; even.
            base: of the plain frequencies.
        """
        return Waves(plain(width, base) / self.factor, 1.0)


@dataclass(frozen=True)
class NTK:
    """A larger base, base * s^(d/(d-2)), for a context `factor` times as long.

    Attributes:
        factor: how many times longer the context becomes; at least 1.
    """

    factor: float

    def __post_init__(self) -> None:
        _stretch("NTK", self.factor)

    def waves(self, width: int, base: float) -> Waves:
        """Frequencies of the larger base.

        Args:
            width: of heads; even.
            base: of the plain frequencies.
        """
        if width < 4:
            raise ArgumentError("NTK: the width of heads", ">= 4", width)
        return Waves(plain(width, base * self.factor ** (width / (width - 2))), 1.0)


@dataclass(frozen=True)
class YaRN:
    """Interpolation of slow waves only, and logits times (0.1 log s + 1)^2.

    `length` is the trained length, `factor` how many times longer the context becomes.

    Attributes:
        factor: how many times longer the context becomes; at least 1.
        length: the trained length.
        fast: waves that turn more often within `length` stay as they are.
        slow: waves that turn less often are interpolated.
    """

    factor: float
    length: int
    fast: float = 32.0
    slow: float = 1.0

    def __post_init__(self) -> None:
        _stretch("YaRN", self.factor)
        count("YaRN: length", self.length, least=2)
        number("YaRN: slow", self.slow, above=0.0)
        number("YaRN: fast", self.fast, above=self.slow)

    @property
    def attention_factor(self) -> float:
        """0.1 log(s) + 1, on queries and on keys; its square acts on the logits."""
        return 0.1 * math.log(self.factor) + 1.0

    def waves(self, width: int, base: float) -> Waves:
        """A ramp from plain to interpolated frequencies.

        Args:
            width: of heads; even.
            base: of the plain frequencies.
        """
        first = max(math.floor(self._turning(self.fast, width, base)), 0)
        last = min(math.ceil(self._turning(self.slow, width, base)), width - 1)
        step = torch.arange(width // 2, dtype=torch.float64)
        squeezed = ((step - first) / max(last - first, 1e-3)).clamp(0.0, 1.0)
        w = plain(width, base)
        return Waves(w * (1 - squeezed) + w / self.factor * squeezed, self.attention_factor)

    def _turning(self, turns: float, width: int, base: float) -> float:
        """The (fractional) index of the wave that turns so often within `length`."""
        return width * math.log(self.length / (turns * 2 * math.pi)) / (2 * math.log(base))


class RotaryPositions(Positions):
    """Turns queries and keys by their position; `scaling` stretches it beyond the trained length.

    Halves are paired, x_i with x_(i+d/2), as Llama, Qwen and GPT-NeoX do. Nothing to train, nothing
    in the state dict.

    Args:
        base: of the frequencies; above 1.
        scaling: None, Interpolated(...), NTK(...) or YaRN(...).

    >>> RotaryPositions(scaling=YaRN(4.0, 2048))
    RotaryPositions(base=10000.0, scaling=YaRN(factor=4.0, length=2048, fast=32.0, slow=1.0))
    """

    def __init__(self, *, base: float = 10_000.0, scaling: Scaling | None = None) -> None:
        super().__init__()
        self.base = number("RotaryPositions: base", base, above=1.0)
        if scaling is not None and not hasattr(scaling, "waves"):
            rule = "None, Interpolated(...), NTK(...) or YaRN(...)"
            raise ArgumentTypeError("RotaryPositions: scaling", rule, repr(scaling))
        self.scaling = scaling

    def waves(self, width: int, *, dtype: torch.dtype = torch.float32) -> Waves:
        """Frequencies [width/2] and the factor on queries and keys.

        Args:
            width: of heads; even.
            dtype: of the frequencies.
        """
        if width % 2:
            raise ArgumentError("RotaryPositions: the width of heads", "even", width)
        waves = Waves(plain(width, self.base), 1.0)
        if self.scaling is not None:
            waves = self.scaling.waves(width, self.base)
        return waves._replace(frequencies=waves.frequencies.to(dtype))

    def rotate(self, x_BHND: Tensor, *, first: int = 0) -> Tensor:
        """Queries or keys, turned by their positions.

        Args:
            x_BHND: queries or keys.
            first: position of the first row.
        """
        length, width = x_BHND.shape[-2:]
        wide = x_BHND if x_BHND.dtype == torch.float64 else x_BHND.float()
        w, factor = self.waves(width, dtype=wide.dtype)
        place = torch.arange(first, first + length, device=x_BHND.device, dtype=wide.dtype)
        angle = place[:, None] * w.to(wide)
        cos, sin = ((f * factor).to(wide.dtype) for f in (angle.cos(), angle.sin()))
        a, b = wide.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x_BHND.dtype)

    def forward(self, x: Tensor, *, first: int = 0) -> Tensor:
        """As `rotate`.

        Args:
            x: [...,N,D].
            first: position of the first row.
        """
        return self.rotate(x, first=first)

    def extra_repr(self) -> str:
        """The base and the scaling."""
        return f"base={self.base}, scaling={self.scaling}"


def _stretch(owner: str, factor: float) -> None:
    number(f"{owner}: factor", factor)
    if factor < 1:
        raise ArgumentError(f"{owner}: factor", ">= 1", factor)
