"""Four positional encodings; each can be the `positions` of a layer.

    SinusoidalPositions  adds a wave to the inputs of queries and keys
    RotaryPositions      turns queries and keys (attentropy.nn.positions.rotary)
    RelativeBias         adds a learned number for each head and distance to the logits
    ALiBi                subtracts slope * distance from the logits (attentropy.core.scores)

A layer calls three hooks, and each kind of positions answers one of them.
"""

import math

import torch
from torch import Tensor, nn

from attentropy.core.errors import ArgumentError, ArgumentTypeError
from attentropy.core.scores import ALiBi, Relative
from attentropy.nn._checks import count, number


class Positions(nn.Module):
    """The hooks that a layer calls. Each leaves its input as it is unless a kind overrides it."""

    def embed(self, x_BND: Tensor, *, first: int = 0) -> Tensor:
        """What queries and keys are projected from.

        Args:
            x_BND: inputs of the layer.
            first: position of the first row.
        """
        return x_BND

    def rotate(self, x_BHND: Tensor, *, first: int = 0) -> Tensor:
        """Queries or keys after projection.

        Args:
            x_BHND: queries or keys.
            first: position of the first row.
        """
        return x_BHND

    def bias(self) -> Relative | ALiBi | None:
        """What is added to the logits."""
        return None


class SinusoidalPositions(Positions):
    """x + amplitude * P, P[n, 2i] = sin(n w_i), P[n, 2i+1] = cos(n w_i), w_i = base^(-2i/d).

    Embeddings have a standard deviation far from that of P, which is sqrt(1/2) for each entry; the
    amplitude sets how strong positions are compared with them. In a layer it is added to what
    queries and keys are made from, not to values. There is nothing to train and nothing in the
    state dict.

    Args:
        amplitude: of the waves.
        base: above 1; the slowest wave has the length 2 pi * base.
    """

    def __init__(self, amplitude: float = 1.0, *, base: float = 10_000.0) -> None:
        super().__init__()
        self.amplitude = number("SinusoidalPositions: amplitude", amplitude)
        self.base = number("SinusoidalPositions: base", base, above=1.0)

    def table(self, length: int, width: int, *, first: int = 0, like: Tensor) -> Tensor:
        """amplitude * P, [length, width].

        Args:
            length: number of rows.
            width: number of columns.
            first: position of the first row.
            like: a tensor of the dtype and device wanted.
        """
        half = torch.arange((width + 1) // 2, device=like.device, dtype=torch.float32)
        place = torch.arange(first, first + length, device=like.device, dtype=torch.float32)
        angle = place[:, None] * torch.exp(-math.log(self.base) * 2 * half / max(width, 1))
        waves = torch.stack([angle.sin(), angle.cos()], -1).flatten(1)[:, :width]
        return (self.amplitude * waves).to(like.dtype)

    def embed(self, x_BND: Tensor, *, first: int = 0) -> Tensor:
        """x + amplitude * P.

        Args:
            x_BND: inputs of the layer.
            first: position of the first row.
        """
        return x_BND + self.table(x_BND.shape[-2], x_BND.shape[-1], first=first, like=x_BND)

    def forward(self, x: Tensor, *, first: int = 0) -> Tensor:
        """As `embed`, for use before a whole model.

        Args:
            x: [...,N,D].
            first: position of the first row.
        """
        return self.embed(x, first=first)

    def extra_repr(self) -> str:
        """The amplitude and the base."""
        return f"amplitude={self.amplitude}, base={self.base}"


class RelativeBias(Positions):
    """table[h, clip(j - i, -reach, reach)] added to the logits; learned, zero at first.

    The state dict has `table` [H, 2*reach+1]; distances beyond `reach` share the outermost entry.

    Args:
        num_heads: H.
        reach: the largest distance that has an entry of its own; at least 1.
    """

    def __init__(self, num_heads: int, reach: int) -> None:
        super().__init__()
        count("RelativeBias: num_heads", num_heads)
        count("RelativeBias: reach", reach)
        self.table = nn.Parameter(torch.zeros(num_heads, 2 * reach + 1))

    def bias(self) -> Relative:
        """The table as a bias of attend()."""
        return Relative(self.table)

    def forward(self) -> Relative:
        """As `bias`."""
        return self.bias()


class DistanceBias(Positions):
    """A bias of attend() that depends on distance only, as positions of a layer; nothing to train.

    Layers make it from `attentropy.ALiBi()` or `attentropy.Relative(table)`. The given numbers move
    with the layer to other devices, and are not in the state dict.

    Args:
        given: ALiBi or Relative.
    """

    numbers: Tensor | None

    def __init__(self, given: ALiBi | Relative) -> None:
        super().__init__()
        self.kind = type(given)
        numbers = given.slopes if isinstance(given, ALiBi) else given.table
        if self.kind is ALiBi and numbers is not None and not bool((numbers >= 0).all()):
            raise ArgumentError("ALiBi: slopes", ">= 0", numbers.tolist())
        self.register_buffer("numbers", numbers, persistent=False)

    def bias(self) -> ALiBi | Relative:
        """The bias of attend()."""
        if self.numbers is None:
            return ALiBi()
        return self.kind(self.numbers)

    def extra_repr(self) -> str:
        """The kind of bias."""
        return self.kind.__name__


def as_positions(value: object) -> Positions | None:
    """Positions as they are; a bias by distance becomes DistanceBias, and None stays None.

    Args:
        value: what a layer was given as `positions`.
    """
    if value is None or isinstance(value, Positions):
        return value
    if isinstance(value, ALiBi | Relative):
        return DistanceBias(value)
    rule = "RotaryPositions, SinusoidalPositions, RelativeBias or ALiBi()"
    raise ArgumentTypeError("positions", rule, repr(value))
