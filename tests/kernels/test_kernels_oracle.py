"""Every kernel against a dense oracle that shares no code with any of them, on random calls.

A result may be wrong by a few times what the same computation loses in the precision of the inputs.
Skipped: dropout and Gumbel noise, which are drawn by the library itself (see test_noise), additive
scores, and vectors of width 1.
"""

import pytest
import torch

import attentropy as at
from attentropy.kernels.fused import library
from tests.oracle import NAMES, draw, expected, gradients

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}
SERVED = [
    (kernel, dtype)
    for kernel in ("fused", "streaming", "reference", "linear")
    for dtype in DTYPES
    if kernel != "fused" or (dtype != "float64" and library.serving is not None)
]


def off(got, want):
    """The largest difference; infinite where one is finite and the other is not."""
    got, want = got.detach().double(), want.detach().double()
    same = (got == want) | (got.isnan() & want.isnan())
    gap = torch.where(same, 0.0, (got - want).abs()).nan_to_num(nan=torch.inf)
    return gap.max().item() if gap.numel() else 0.0


def size(x):
    x = x.detach().double()
    return x[x.isfinite()].abs().max().item() if x.isfinite().any() else 0.0


def differences(kernel, call):
    """(name, error, budget) of every result of a call; None if the kernel does not serve it."""
    tensors = [x.detach().requires_grad_() for x in call.tensors]
    if at.explain(*tensors, **call.options).lacking[kernel] is not None:
        return None
    out, stats = at.attend(*tensors, kernel=kernel, **call.options)
    got = {name: getattr(stats, name) for name in NAMES}
    exact, rough = expected(call), expected(call, naive=True)
    low, eps = _units(call)
    found = [("out", off(out, exact[0]), 8 * off(rough[0], exact[0]) + 8 * low * size(exact[0]))]
    for name, want in exact[1].items():
        if got[name] is not None and want is not None:
            budget = 8 * off(rough[1][name], want) + 32 * eps * (1 + size(want))
            found.append((name, off(got[name], want), budget))
    pairs = zip(
        "qkv",
        gradients(out, got, tensors),
        *(gradients(x[0], {n: x[1].get(n) for n in NAMES}, x[2]) for x in (exact, rough)),
        strict=True,
    )
    for name, mine, want, naive in pairs:
        largest = max(size(x) for x in (want, exact[0], *call.tensors))
        rows = call.seen.shape[0] * call.seen.shape[1] * max(call.seen.shape[2:])
        budget = 8 * off(naive, want) + 32 * low * (1 + largest) ** 2 * rows**0.5
        found.append((f"d{name}", off(mine, want), budget))
    return found


def _units(call):
    """Rounding of outputs and of statistics; weights are as uncertain as the largest logit."""
    low = torch.finfo(call.tensors[0].dtype).eps
    # unit vectors have the dtype of the inputs, other statistics are float32 or better
    eps = low if call.terms.get("score") == "cosine" else min(low, torch.finfo(torch.float32).eps)
    reach = 1 + call.terms.get("reach", 0.0)
    return low + reach * eps, reach * eps


def check(kernel, seeds, dtype):
    """Raise on the first result that is beyond its budget; returns how many calls it served."""
    compared = 0
    for seed in seeds:
        call = draw(seed, dtype)
        found = differences(kernel, call)
        for name, error, budget in found or ():
            assert error <= budget, f"{name} is off by {error:.3g}, not {budget:.3g}; {call}"
        compared += found is not None
    return compared


@pytest.mark.parametrize(("kernel", "dtype"), SERVED)
def test_random_calls(kernel, dtype):
    count = {"float32": 60, "float64": 20, "bfloat16": 30}[dtype]
    assert check(kernel, range(count), DTYPES[dtype])


@pytest.mark.slow
@pytest.mark.parametrize(("kernel", "dtype"), SERVED)
@pytest.mark.parametrize("part", range(4))
def test_thousands_of_random_calls(kernel, dtype, part):
    count = {"float32": 600, "float64": 150, "bfloat16": 250}[dtype]
    first = 10_000 * (part + 1)
    assert check(kernel, range(first, first + count), DTYPES[dtype])
