"""The inputs of a call as the kernels of this folder take them."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from attentropy.kernels.triton.configs import Config, configs
from attentropy.kernels.triton.device.views import Drop, Table, Terms, View, line, view

MAX_WIDTH = 256


def padded(width: int) -> int:
    """The power of two, at least 16, that a head of this width is padded to.

    >>> padded(5), padded(64), padded(80)
    (16, 64, 128)
    """
    return max(16, 1 << (width - 1).bit_length())


def signed(word: int) -> int:
    """The low 32 bits as a signed number.

    >>> signed(2**32 - 1), signed(2**32 + 5)
    (-1, 5)
    """
    return (word + 2**31) % 2**32 - 2**31


@dataclass(frozen=True, eq=False, kw_only=True)
class Problem:
    """Inputs as in `Call`; None and 0.0 stand for what is absent."""

    q: Tensor
    k: Tensor
    v: Tensor
    scale: Tensor
    lo: Tensor | None = None
    hi: Tensor | None = None
    mask: Tensor | None = None
    bias: Tensor | None = None
    relative: Tensor | None = None
    slopes: Tensor | None = None
    softcap: float = 0.0
    dropout: float = 0.0
    seed: int = 0

    @property
    def rows(self) -> tuple[int, int, int]:
        """B, H, Q."""
        return self.q.shape[0], self.q.shape[1], self.q.shape[2]

    @property
    def keys(self) -> int:
        """K."""
        return self.k.shape[2]

    @property
    def precise(self) -> bool:
        """Whether inputs are float32."""
        return self.q.dtype == torch.float32

    @property
    def laden(self) -> bool:
        """Whether something is read or drawn for every pair of query and key."""
        terms = (self.mask, self.bias, self.relative)
        return self.dropout > 0 or any(x is not None for x in terms)

    @property
    def precision(self) -> str | None:
        """How tiles of float32 are multiplied; not all have the registers for tf32 thrice."""
        if not self.precise:
            return None
        return "ieee" if self.laden and self.width > 128 else "tf32x3"

    def again(self) -> dict[str, object]:
        """The arguments of a second launch, which does what is not finite once more."""
        return {"SAFE": True, "PRECISION": "ieee"}

    def configs(self, kernel: str) -> tuple[Config, ...]:
        """The tile sizes to choose from."""
        return configs(kernel, width=self.width, precise=self.precise, laden=self.laden)

    @property
    def hides(self) -> bool:
        """Whether some key may be hidden from some query."""
        return any(x is not None for x in (self.lo, self.hi, self.mask, self.bias))

    @property
    def width(self) -> int:
        """The padded width that decides the tile sizes."""
        return padded(max(self.q.shape[-1], self.v.shape[-1]))

    @property
    def bucket(self) -> int:
        """Lengths to the next power of two: calls of one bucket share their tuning."""
        return 64 * self.rows[2].bit_length() + self.keys.bit_length()

    def shared(self) -> dict[str, object]:
        """The arguments that the kernels with tiles have in common."""
        return {
            "q": self.heads(self.q),
            "k": self.heads(self.k),
            "v": self.heads(self.v),
            "terms": self.terms(),
            "drop": self.drop(),
            "heads": self.rows[1],
            "key_heads": self.k.shape[1],
            "bucket": self.bucket,
            "D": self.q.shape[-1],
            "DV": self.v.shape[-1],
            "BLOCK_D": padded(self.q.shape[-1]),
            "BLOCK_V": padded(self.v.shape[-1]),
            "PRECISION": self.precision,
            "SAFE": False,
        }

    def terms(self) -> Terms:
        """What turns scores into final logits."""
        everywhere = (*self.rows, self.keys)
        return Terms(
            scale=line(self.scale, self.rows),
            lo=None if self.lo is None else line(self.lo, self.rows),
            hi=None if self.hi is None else line(self.hi, self.rows),
            mask=None if self.mask is None else view(self.mask, everywhere),
            bias=None if self.bias is None else view(self.bias, everywhere),
            relative=None if self.relative is None else table(self.relative),
            slopes=self.slopes,
            softcap=self.softcap or None,
            queries=self.rows[2],
            keys=self.keys,
        )

    def drop(self) -> Drop | None:
        """Dropout, where there is any."""
        if not self.dropout:
            return None
        gain = 1 / (1 - self.dropout) if self.dropout < 1 else 0.0
        threshold = math.ceil(self.dropout * 2**23 - 0.5)
        return Drop(signed(self.seed), signed(self.seed >> 32), threshold, gain)

    @staticmethod
    def heads(tensor: Tensor) -> View:
        """A [B,H,N,D] tensor as it is."""
        return View(tensor, *tensor.stride())


def table(relative: Tensor) -> Table:
    """The relative bias [1 or H, 2R+1], whose rows are contiguous."""
    stride = relative.stride(0) if len(relative) > 1 else 0
    return Table(relative, stride, relative.shape[1] // 2)
