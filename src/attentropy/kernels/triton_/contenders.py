"""Who to compare with on a GPU: `attentropy bench --device cuda` interleaves these.

Each contender takes q, k, v [B,H,N,D] and returns a function that runs one forward pass and
returns the output; one that cannot run here raises, with the reason as its message.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

Contender = Callable[[Tensor, Tensor, Tensor, bool], Callable[[], Tensor]]


def scaled_dot_product(backend: SDPBackend) -> Contender:
    """torch's attention held to one backend; it returns the output only."""

    def prepare(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Callable[[], Tensor]:
        def run() -> Tensor:
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

        return run

    return prepare


def flex(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Callable[[], Tensor]:
    """FlexAttention, compiled, with its auxiliary outputs: lse and largest score."""
    from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

    def visible(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return i >= j

    mask = create_block_mask(visible, None, None, q.shape[2], k.shape[2]) if causal else None
    compiled = torch.compile(flex_attention)
    wanted = AuxRequest(lse=True, max_scores=True)

    def run() -> Tensor:
        out: Tensor = compiled(q, k, v, block_mask=mask, return_aux=wanted)[0]  # type: ignore[arg-type]
        return out

    return run


def triton(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Callable[[], Tensor]:
    """This library's kernel: output, lse, entropy, largest logit, argmax and sum p^2."""
    from attentropy.kernels.triton_.ops import triton_forward

    rows, keys = q.shape[2], k.shape[2]
    scale = torch.full((1, 1, 1), q.shape[-1] ** -0.5, device=q.device)
    hi = None
    if causal:
        first = keys - rows + 1
        hi = torch.arange(first, keys + 1, device=q.device, dtype=torch.int32).view(1, 1, -1)

    def run() -> Tensor:
        args = (q, k, v, scale, None, hi, None, None, None, None, 0.0, 0.0, None)
        return triton_forward(*args)[0]

    return run


def contenders() -> dict[str, Contender]:
    """Contenders by name, in the order of the table."""
    return {
        "SDPA flash": scaled_dot_product(SDPBackend.FLASH_ATTENTION),
        "SDPA cuDNN": scaled_dot_product(SDPBackend.CUDNN_ATTENTION),
        "FlexAttention (lse, max)": flex,
        "attentropy triton": triton,
    }
