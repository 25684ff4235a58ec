"""Contenders on a GPU, and the memory and name of the GPU.

FlexAttention and the named backends of torch's attention give no entropy.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from attentropy.core.errors import UnsupportedError
from attentropy.lab.bench.contenders import BenchCase, Contender, kernel, sdpa

NAMES = FLASH, CUDNN, FLEX = "SDPA flash", "SDPA cuDNN", "FlexAttention (lse, max)"


def contenders(case: BenchCase) -> dict[str, Contender]:
    """The contenders of a GPU by name, sdpa first.

    Torch's flash and cuDNN attention take no mask but the causal one.

    Args:
        case: shape, precision and mask.
    """
    found: dict[str, Contender] = {"sdpa": sdpa}
    if not case.window:
        found[FLASH] = backend(SDPBackend.FLASH_ATTENTION)
        found[CUDNN] = backend(SDPBackend.CUDNN_ATTENTION)
    return found | {FLEX: flex, "triton": kernel("triton"), "streaming": kernel("streaming")}


def backend(which: SDPBackend) -> Contender:
    """A contender that calls torch's attention with one backend only.

    Args:
        which: backend of torch.
    """

    def run(q: Tensor, k: Tensor, v: Tensor, case: BenchCase) -> tuple[Tensor, None]:
        with sdpa_kernel(which):
            return F.scaled_dot_product_attention(q, k, v, is_causal=case.causal), None

    return run


def flex(q: Tensor, k: Tensor, v: Tensor, case: BenchCase) -> tuple[Tensor, None]:
    """FlexAttention, compiled, with its auxiliary outputs: lse and largest score.

    Args:
        q: queries.
        k: keys.
        v: values.
        case: shape, precision and mask.
    """
    from torch.nn.attention.flex_attention import AuxRequest

    wanted = AuxRequest(lse=True, max_scores=True)
    return _compiled()(q, k, v, block_mask=_blocks(case), return_aux=wanted)[0], None


@cache
def _compiled() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention)


@cache
def _blocks(case: BenchCase) -> Any:
    """The mask of a case for FlexAttention; None where all keys are visible."""
    from torch.nn.attention.flex_attention import create_block_mask

    if case.mask is None:
        return None
    queries, window = case.queries or case.length, case.window or case.length
    shift = case.length - queries

    def visible(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (i + shift >= j) & (i + shift - j < window)

    return create_block_mask(visible, None, None, queries, case.length, device=case.device)


def require() -> None:
    """Raise in one sentence if there is no GPU to measure on."""
    if not torch.cuda.is_available():
        raise UnsupportedError("device='cuda': torch finds no CUDA device on this machine")


def describe() -> dict[str, str]:
    """Name and capability of the GPU, and the version of CUDA."""
    major, minor = torch.cuda.get_device_capability()
    return {
        "gpu": torch.cuda.get_device_name(),
        "capability": f"{major}.{minor}",
        "cuda": str(torch.version.cuda),
    }


def predicted(case: BenchCase) -> float | None:
    """Seconds that the model of the card predicts for the Triton kernel; None if it is unknown.

    Args:
        case: shape, precision and mask.
    """
    from attentropy.lab.bench.predicted import seconds

    major, minor = torch.cuda.get_device_capability()
    return seconds(case, arch=10 * major + minor)


def peak_extra(call: Callable[[], None]) -> float:
    """MiB that torch allocated on the card at the peak of a call above the level before it.

    Args:
        call: what is measured.
    """
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20
