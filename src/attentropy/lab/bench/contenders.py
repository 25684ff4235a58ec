"""Ways to compute attention that a benchmark compares.

A contender takes q, k, v and the case, and returns the output and the entropy of every row, or
None for the entropy if it cannot compute it.
"""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from attentropy.attention.attend import attend
from attentropy.attention.choice import explain
from attentropy.core.masks import Mask, lookback
from attentropy.core.masks import causal as causal_mask


class BenchCase(NamedTuple):
    """A shape to measure.

    Args:
        batch: number of sequences.
        heads: number of heads.
        length: number of keys.
        width: of queries, keys and values.
        dtype: of all tensors.
        causal: hides keys after the query.
        backward: measures the gradients too.
        queries: number of queries; 0 is one per key.
        window: keys that a query sees, itself included; 0 means no window.
        device: "cpu" or "cuda".
    """

    batch: int
    heads: int
    length: int
    width: int
    dtype: torch.dtype = torch.float32
    causal: bool = False
    backward: bool = False
    queries: int = 0
    window: int = 0
    device: str = "cpu"

    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """Standard normal q, k, v."""
        generator = torch.Generator().manual_seed(0)
        q, k, v = (
            torch.randn(self.batch, self.heads, rows, self.width, generator=generator)
            .to(self.device, self.dtype)
            .requires_grad_(self.backward)
            for rows in (self.queries or self.length, self.length, self.length)
        )
        return q, k, v

    @property
    def mask(self) -> Mask | None:
        """The mask of attend()."""
        if self.window:
            return causal_mask & lookback(self.window)
        return causal_mask if self.causal else None

    def table(self) -> Tensor | None:
        """The mask as a bool tensor, True where visible."""
        if self.mask is None:
            return None
        sizes = self.queries or self.length, self.length, self.window or self.length
        return _visible(*sizes, self.device)


@cache
def _visible(queries: int, keys: int, window: int, device: str) -> Tensor:
    behind = torch.arange(keys - queries, keys)[:, None] - torch.arange(keys)
    return ((behind >= 0) & (behind < window)).to(device)


Contender = Callable[[Tensor, Tensor, Tensor, BenchCase], tuple[Tensor, Tensor | None]]


def sdpa(q: Tensor, k: Tensor, v: Tensor, case: BenchCase) -> tuple[Tensor, None]:
    """Torch's own attention, without statistics.

    Args:
        q: queries.
        k: keys.
        v: values.
        case: shape, precision and mask.
    """
    if case.window:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=case.table()), None
    return F.scaled_dot_product_attention(q, k, v, is_causal=case.causal), None


def eager(q: Tensor, k: Tensor, v: Tensor, case: BenchCase) -> tuple[Tensor, Tensor]:
    """Output and entropy from the full matrix of weights.

    Args:
        q: queries.
        k: keys.
        v: values.
        case: shape, precision and mask.
    """
    s = (q @ k.mT).float() * q.shape[-1] ** -0.5
    visible = case.table()
    if visible is not None:
        s = s.masked_fill(~visible, -torch.inf)
    log_p = s.log_softmax(-1)
    p = log_p.exp()
    entropy = -(p * log_p.clamp(min=-1e4)).sum(-1)
    return p.to(v.dtype) @ v, entropy


def kernel(name: str) -> Contender:
    """A contender that calls attend() with one kernel and all statistics.

    Args:
        name: kernel of attend().
    """

    def run(q: Tensor, k: Tensor, v: Tensor, case: BenchCase) -> tuple[Tensor, Tensor | None]:
        out, stats = attend(q, k, v, mask=case.mask, kernel=name)
        return out, stats.entropy

    return run


def available(case: BenchCase) -> dict[str, Contender]:
    """The contenders that can run a case on this machine; sdpa, the measure, comes first.

    Args:
        case: shape, precision and mask.
    """
    if case.device == "cuda":
        from attentropy.lab.bench import cuda

        return cuda.contenders(case)
    found: dict[str, Contender] = {"sdpa": sdpa}
    if case.batch * case.heads * case.length**2 <= 1 << 28:
        found["eager"] = eager
    lacking = explain(*case.tensors(), mask=case.mask).lacking
    found |= {
        name: kernel(name) for name, reason in lacking.items()
        if reason is None and name != "reference"
    }  # fmt: skip
    return found
