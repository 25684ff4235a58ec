"""Attention with statistics on the GPU, in Triton: `kernel="triton"`.

Runs on CUDA tensors, and on any tensor in Triton's interpreter (set TRITON_INTERPRET=1 before
Python starts). `docs/gpu.md` has the design and what it takes of the hardware.
"""

import os
from importlib.util import find_spec

import torch
from torch import Tensor

from attentropy.core.call import Call, Rows
from attentropy.core.errors import UnsupportedError
from attentropy.core.weights import Softmax
from attentropy.kernels import softmax_results
from attentropy.kernels.packing import INPUTS
from attentropy.kernels.passes import Grads, InputGradients, Needs, Operators
from attentropy.kernels.softmax_results import SoftmaxResults

name = "triton"
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
    """Output and statistics, with gradients through output, lse, entropy and collision."""
    return softmax_results.rows(PASSES(call))


def key_mass(call: Call) -> Tensor:
    """What each key receives, [B,H,K]."""
    return softmax_results.key_mass(PASSES, call)


def forward(call: Call) -> SoftmaxResults:
    """Launch the forward pass. No autograd."""
    from attentropy.kernels.triton.plan_forward import plan_forward
    from attentropy.kernels.triton.problem import Problem

    launches, results = plan_forward(Problem.of(call))
    if results.lse.numel():
        for launch in launches:
            launch.start()
    return results._replace(varentropy=torch.full_like(results.lse, torch.nan))


def backward(call: Call, results: SoftmaxResults, grads: Grads, needs: Needs) -> InputGradients:
    """Launch the backward pass. No autograd."""
    if grads.get("varentropy") is not None:
        raise UnsupportedError("the triton kernel has no varentropy, and no gradient of it")
    from attentropy.kernels.triton.plan_backward import plan_backward
    from attentropy.kernels.triton.problem import Problem

    launches, found = plan_backward(Problem.of(call), results, grads, needs)
    if results.lse.numel() or call.k.numel():
        for launch in launches:
            launch.start()
    return tuple(
        found[n].sum_to_size(x.shape).to(x.dtype)
        if (x := getattr(call, n)) is not None and needs[n]
        else None
        for n in INPUTS
    )


def _operators() -> Operators[SoftmaxResults]:
    from attentropy.kernels.triton.operators import OPERATORS

    return OPERATORS


PASSES = softmax_results.softmax_passes(
    "triton", kernel=name, forward=forward, backward=backward, operators=_operators
)
