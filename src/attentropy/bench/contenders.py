"""Ways to compute attention that a benchmark compares.

A contender takes q, k, v and whether attention is causal, and gives the output and the entropy of
every row, or None for the entropy if it cannot.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from attentropy.attention import attend, explain
from attentropy.masks import causal as causal_mask


class Case(NamedTuple):
    """A shape to measure."""

    batch: int
    heads: int
    length: int
    width: int
    dtype: torch.dtype = torch.float32
    causal: bool = False
    backward: bool = False

    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """Standard normal q, k, v."""
        generator = torch.Generator().manual_seed(0)
        shape = (self.batch, self.heads, self.length, self.width)
        q, k, v = (
            torch.randn(shape, generator=generator).to(self.dtype).requires_grad_(self.backward)
            for _ in range(3)
        )
        return q, k, v


Run = Callable[[Tensor, Tensor, Tensor, Case], tuple[Tensor, Tensor | None]]


def sdpa(q: Tensor, k: Tensor, v: Tensor, case: Case) -> tuple[Tensor, None]:
    """Torch's own attention, without statistics."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=case.causal), None


def eager(q: Tensor, k: Tensor, v: Tensor, case: Case) -> tuple[Tensor, Tensor]:
    """The full matrix and its entropy."""
    s = (q @ k.mT).float() * q.shape[-1] ** -0.5
    if case.causal:
        hidden = torch.ones(s.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        s = s.masked_fill(hidden, -torch.inf)
    log_p = s.log_softmax(-1)
    p = log_p.exp()
    entropy = -(p * log_p.clamp(min=-1e4)).sum(-1)
    return p.to(v.dtype) @ v, entropy


def kernel(name: str) -> Run:
    """attend() by one of its kernels, all statistics on."""

    def run(q: Tensor, k: Tensor, v: Tensor, case: Case) -> tuple[Tensor, Tensor | None]:
        out, stats = attend(q, k, v, mask=causal_mask if case.causal else None, kernel=name)
        return out, stats.entropy

    return run


def available(case: Case) -> dict[str, Run]:
    """The contenders that can run a case on this machine; sdpa, the measure, comes first."""
    found: dict[str, Run] = {"sdpa": sdpa}
    if case.batch * case.heads * case.length**2 <= 1 << 28:
        found["eager"] = eager
    lacking = explain(*case.tensors(), mask=causal_mask if case.causal else None).lacking
    found |= {
        name: kernel(name) for name, reason in lacking.items()
        if reason is None and name != "reference"
    }  # fmt: skip
    return found
