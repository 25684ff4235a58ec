"""Attention with statistics on the GPU, in Triton: `kernel="triton"`.

Runs on CUDA tensors, and on any tensor in Triton's interpreter (set TRITON_INTERPRET=1 before
Python starts). `docs/gpu.md` has the design and what it takes of the hardware.
"""

import os
from importlib.util import find_spec
from typing import Any

import torch

from attentropy.core.call import Call, Rows
from attentropy.core.weights import Softmax

INSTALLED = find_spec("triton") is not None
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
MAX_WIDTH = 256


def lacks(call: Call) -> str | None:
    """What keeps this kernel from serving the call, in words; None if it can."""
    if not INSTALLED:
        return "this environment, where triton is not installed (pip install triton)"
    if call.q.device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        return f"{call.q.device.type.upper()} tensors (only CUDA tensors, or TRITON_INTERPRET=1)"
    if call.seen.predicate is not None:
        return "a tile predicate mask"
    if call.additive is not None:
        return "the additive score"
    if not isinstance(call.weights, Softmax):
        return f"{type(call.weights).__name__} weights (only Softmax)"
    if call.q.dtype not in DTYPES:
        return str(call.q.dtype).removeprefix("torch.")
    if not call.q.dtype == call.k.dtype == call.v.dtype:
        return "queries, keys and values of different dtypes"
    if max(call.q.shape[-1], call.v.shape[-1]) > MAX_WIDTH:
        return f"heads wider than {MAX_WIDTH}"
    return None


def attend(call: Call) -> Rows:
    """Output and statistics, with gradients through output, lse, entropy and collision.

    The sink is not the kernel's: it joins rows that are read already.
    """
    from attentropy.kernels.triton.operators import triton_forward

    *rows, _ = triton_forward(*arguments(call))
    return Rows(*rows)


def arguments(call: Call) -> tuple[Any, ...]:
    """The fields of a call in the order of the operator's arguments."""
    relative = None if call.relative is None else call.relative.contiguous()
    return (
        call.q, call.k, call.v, call.scale, call.seen.lo, call.seen.hi, call.seen.table, call.bias,
        relative, call.slopes, call.softcap or 0.0, call.dropout, call.seed,
    )  # fmt: skip
