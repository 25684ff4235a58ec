"""The inputs of a call as the kernels of this folder take them."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from attentropy.core.call import Call
from attentropy.kernels.triton.configs import TileSizes
from attentropy.kernels.triton.device.views import (
    DistanceTable,
    Drop,
    LogitTerms,
    View,
    line,
    view,
)
from attentropy.kernels.triton.measured import best_sizes

MAX_ROWS = 256
"""No tile has more rows or columns."""
DRAW_BITS = 23
"""Bits of a draw of dropout."""


def padded(width: int) -> int:
    """The power of two, at least 16, that a head of this width is padded to.

    >>> padded(5), padded(64), padded(80)
    (16, 64, 128)
    """
    return max(16, 1 << (width - 1).bit_length())


def cut_width(width: int) -> tuple[int, int]:
    """The columns of a head as two tiles, each a power of two: the second is smaller, or 0.

    >>> cut_width(96), cut_width(64), cut_width(40), cut_width(100)
    ((64, 32), (64, 0), (32, 16), (128, 0))
    """
    whole = padded(width)
    tail = padded(max(1, width - whole // 2))
    return (whole // 2, tail) if tail < whole // 2 else (whole, 0)


def signed(word: int) -> int:
    """The low 32 bits as a signed number.

    >>> signed(2**32 - 1), signed(2**32 + 5)
    (-1, 5)
    """
    return (word + 2**31) % 2**32 - 2**31


@dataclass(frozen=True, eq=False)
class Problem:
    """A call as the kernels of this folder take it: bundles of pointers, and sizes.

    Attributes:
        call: with bounds or a table for a mask, and a relative bias whose rows are contiguous.
    """

    call: Call

    @classmethod
    def of(cls, call: Call) -> "Problem":
        """The problem of a call."""
        if call.relative is not None:
            call = call._replace(relative=call.relative.contiguous())
        return cls(call)

    @property
    def rows(self) -> tuple[int, int, int]:
        """B, H, Q."""
        return self.call.q.shape[0], self.call.q.shape[1], self.call.q.shape[2]

    @property
    def keys(self) -> int:
        """K."""
        return self.call.k.shape[2]

    @property
    def precise(self) -> bool:
        """Whether inputs are float32."""
        return self.call.q.dtype == torch.float32

    @property
    def laden(self) -> bool:
        """Whether something is read or drawn for every pair of query and key."""
        terms = (self.call.seen.table, self.call.bias, self.call.relative)
        return self.call.dropout > 0 or any(x is not None for x in terms)

    @property
    def precision(self) -> str | None:
        """How tiles of float32 are multiplied; not all have the registers for tf32 thrice."""
        if not self.precise:
            return None
        return "ieee" if self.laden and self.width > 128 else "tf32x3"

    def again(self) -> dict[str, object]:
        """The arguments of a second launch, which does what is not finite once more."""
        return {"SAFE": True, "PRECISION": "ieee", **self.columns()}

    def tiles(self, kernel: str) -> TileSizes:
        """The tile sizes of a kernel for this call."""
        device = self.call.q.device
        major, minor = torch.cuda.get_device_capability(device) if device.type == "cuda" else (8, 0)
        return best_sizes(
            kernel, arch=10 * major + minor, width=self.width, precise=self.precise,
            laden=self.laden,
        )  # fmt: skip

    @property
    def hides(self) -> bool:
        """Whether some key may be hidden from some query."""
        seen = self.call.seen
        return any(x is not None for x in (seen.lo, seen.hi, seen.table, self.call.bias))

    @property
    def width(self) -> int:
        """The columns of the tiles of a head, which decide the tile sizes."""
        return max(sum(cut_width(x.shape[-1])) for x in (self.call.q, self.call.v))

    def shared(self) -> dict[str, object]:
        """The arguments that the kernels with tiles have in common."""
        q, k, v = self.call[:3]
        return {
            "q": self.heads(q),
            "k": self.heads(k),
            "v": self.heads(v),
            "terms": self.terms(),
            "drop": self.drop(),
            "heads": self.rows[1],
            "key_heads": k.shape[1],
            "D": q.shape[-1],
            "DV": v.shape[-1],
            "PRECISION": self.precision,
            "SAFE": False,
        }

    def columns(self, tiles: TileSizes | None = None) -> dict[str, object]:
        """The columns of the heads as tiles: cut in two where that wastes no products.

        Args:
            tiles: of the kernel; where it takes some columns after the others, or none are
                given, heads are one tile.
        """
        widths = {"D": self.call.q.shape[-1], "V": self.call.v.shape[-1]}
        whole = tiles is None or tiles.part > 0
        made: dict[str, object] = {}
        for name, width in widths.items():
            block, tail = (padded(width), 0) if whole else cut_width(width)
            made |= {f"BLOCK_{name}": block, f"TAIL_{name}": tail}
        return made

    def terms(self) -> LogitTerms:
        """What turns scores into final logits."""
        everywhere, call, seen = (*self.rows, self.keys), self.call, self.call.seen
        return LogitTerms(
            scale=line(call.scale, self.rows),
            lo=None if seen.lo is None else line(seen.lo, self.rows),
            hi=None if seen.hi is None else line(seen.hi, self.rows),
            mask=None if seen.table is None else view(seen.table, everywhere),
            bias=None if call.bias is None else view(call.bias, everywhere),
            relative=None if call.relative is None else table(call.relative),
            slopes=call.slopes,
            softcap=call.softcap,
            raw=None if self.acting else 1,
            queries=self.rows[2],
            keys=self.keys,
        )

    @property
    def acting(self) -> bool:
        """Whether anything but the scale acts on scores."""
        parts = (self.call.softcap, self.call.bias, self.call.relative, self.call.slopes)
        return any(x is not None for x in parts)

    def drop(self) -> Drop | None:
        """Dropout, where there is any."""
        rate, seed = self.call.dropout, self.call.seed
        if not rate:
            return None
        word = 0 if seed is None else int(seed)
        threshold = math.ceil(rate * 2**DRAW_BITS - 0.5)
        # a threshold that no draw reaches is one bit too long for the kernels
        gain = 1 / (1 - rate) if threshold < 2**DRAW_BITS else 0.0
        return Drop(signed(word), signed(word >> 32), threshold, gain)

    @staticmethod
    def heads(tensor: Tensor) -> View:
        """A [B,H,N,D] tensor as it is; a copy if the steps in a tile would not fit in 32 bits."""
        if MAX_ROWS * tensor.stride(2) + MAX_ROWS * tensor.stride(3) >= 2**31:
            tensor = tensor.contiguous()
        return View(tensor, *tensor.stride())


def table(relative: Tensor) -> DistanceTable:
    """The relative bias [1 or H, 2R+1], whose rows are contiguous."""
    stride = relative.stride(0) if len(relative) > 1 else 0
    return DistanceTable(relative, stride, relative.shape[1] // 2)
