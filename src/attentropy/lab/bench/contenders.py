"""Ways to compute attention that a benchmark compares.

A contender takes q, k, v and whether attention is causal, and gives the output and the entropy of
every row, or None for the entropy if it cannot.
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


class Case(NamedTuple):
    """A shape to measure. `queries` 0: one per key; `window` 0: none, else causal within it."""

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


Run = Callable[[Tensor, Tensor, Tensor, Case], tuple[Tensor, Tensor | None]]


def sdpa(q: Tensor, k: Tensor, v: Tensor, case: Case) -> tuple[Tensor, None]:
    """Torch's own attention, without statistics."""
    if case.window:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=case.table()), None
    return F.scaled_dot_product_attention(q, k, v, is_causal=case.causal), None


def eager(q: Tensor, k: Tensor, v: Tensor, case: Case) -> tuple[Tensor, Tensor]:
    """The full matrix and its entropy."""
    s = (q @ k.mT).float() * q.shape[-1] ** -0.5
    visible = case.table()
    if visible is not None:
        s = s.masked_fill(~visible, -torch.inf)
    log_p = s.log_softmax(-1)
    p = log_p.exp()
    entropy = -(p * log_p.clamp(min=-1e4)).sum(-1)
    return p.to(v.dtype) @ v, entropy


def kernel(name: str) -> Run:
    """attend() by one of its kernels, all statistics on."""

    def run(q: Tensor, k: Tensor, v: Tensor, case: Case) -> tuple[Tensor, Tensor | None]:
        out, stats = attend(q, k, v, mask=case.mask, kernel=name)
        return out, stats.entropy

    return run


def available(case: Case) -> dict[str, Run]:
    """The contenders that can run a case on this machine; sdpa, the measure, comes first."""
    if case.device == "cuda":
        from attentropy.lab.bench import cuda

        return cuda.contenders(case)
    found: dict[str, Run] = {"sdpa": sdpa}
    if case.batch * case.heads * case.length**2 <= 1 << 28:
        found["eager"] = eager
    lacking = explain(*case.tensors(), mask=case.mask).lacking
    found |= {
        name: kernel(name) for name, reason in lacking.items()
        if reason is None and name != "reference"
    }  # fmt: skip
    return found
