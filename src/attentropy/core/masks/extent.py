"""The sizes of a call that a mask must fit, and indices into it.

Shape letters are those of attentropy.core.results.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from attentropy.core.errors import ArgumentError


class Where(NamedTuple):
    """Places of a call: index tensors that broadcast against each other.

    Attributes:
        b: batch entries.
        h: query heads.
        q: queries.
        k: keys.
        shift: what to add to the index of a query for its position among the keys.
    """

    b: Tensor
    h: Tensor
    q: Tensor
    k: Tensor
    shift: int

    @property
    def position(self) -> Tensor:
        """The place of the query among the keys."""
        return self.q + self.shift


class Extent(NamedTuple):
    """Sizes of a call, and its device.

    Attributes:
        batch: B.
        heads: H, those of the queries.
        queries: Q.
        keys: K.
        device: of its tensors.
    """

    batch: int
    heads: int
    queries: int
    keys: int
    device: torch.device

    @property
    def shift(self) -> int:
        """What to add to the index of a query for its position among the keys."""
        return self.keys - self.queries

    @property
    def positions(self) -> Tensor:
        """Positions of the queries among the keys, [1,1,Q]."""
        return torch.arange(self.queries, device=self.device).view(1, 1, -1) + self.shift

    def where(self) -> Where:
        """Indices of the whole [B,H,Q,K]."""
        sizes = self[:4]
        b, h, q, k = (
            torch.arange(n, device=self.device).view([-1 if i == j else 1 for j in range(4)])
            for i, n in enumerate(sizes)
        )
        return Where(b, h, q, k, self.shift)


def check_broadcast(name: str, value: Tensor, shape: tuple[int, ...]) -> None:
    """Raise unless a tensor broadcasts to [B,H,Q,K].

    Args:
        name: of the argument, for the message.
        value: a tensor with four dimensions.
        shape: B, H, Q and K.
    """
    # == and not `in`: under torch.compile sizes are symbols
    fits = all(
        n == 1 or n == want  # noqa: PLR1714
        for n, want in zip(value.shape, shape, strict=True)
    )
    if not fits:
        raise ArgumentError(name, f"broadcastable to [B,H,Q,K] = {list(shape)}", list(value.shape))


def summed(a: Tensor, b: Tensor) -> Tensor:
    """a + b in float32 or better: of two numbers in low precision the sum may need more digits.

    Args:
        a: numbers to add to logits.
        b: others, in a shape that broadcasts.

    >>> summed(torch.ones(1, dtype=torch.bfloat16), torch.tensor([2**-8], dtype=torch.bfloat16))
    tensor([1.0039])
    """
    wide = torch.promote_types(torch.promote_types(a.dtype, b.dtype), torch.float32)
    return a.to(wide) + b.to(wide)


def check_table(name: str, x: Tensor, extent: Extent) -> Tensor:
    """A table with all four dimensions; raises unless it broadcasts to [B,H,Q,K] on the device.

    Args:
        name: of the argument, for messages.
        x: a tensor of at most four dimensions.
        extent: sizes and device that it must fit.
    """
    if x.dim() > 4:
        raise ArgumentError(name, "of at most 4 dimensions", list(x.shape))
    if x.device != extent.device:
        raise ArgumentError(f"{name}.device", f"that of q, {extent.device}", x.device)
    x = x[(None,) * (4 - x.dim())]
    check_broadcast(name, x, extent[:4])
    return x
