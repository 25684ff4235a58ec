"""Every kernel against a dense oracle that shares no code with any of them, on random calls.

A result may be wrong by a few times what the same computation loses in the precision of the inputs.
Skipped: dropout and Gumbel noise, which are drawn by the library itself (see test_noise), and
additive scores.
"""

import pytest
import torch

import attentropy as at
from tests.oracle import NAMES, draw, expected, gradients

KERNELS = ["fused", "streaming", "reference", "linear"]
DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}


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
    got = {name: getattr(stats, name, None) for name in NAMES}
    low = torch.finfo(out.dtype).eps
    exact, rough = expected(call), expected(call, naive=True)
    found = [
        ("out", off(out, exact[0]), 8 * off(rough[0], exact[0]) + 8 * low * (1 + size(exact[0])))
    ]
    eps = min(low, torch.finfo(torch.float32).eps)
    for name, want in exact[1].items():
        if got[name] is not None and want is not None:
            budget = 8 * off(rough[1][name], want) + 32 * eps * (1 + size(want))
            found.append((name, off(got[name], want), budget))
    pairs = zip(
        "qkv",
        gradients(out, got, tensors),
        gradients(exact[0], {n: exact[1].get(n) for n in NAMES}, exact[2]),
        gradients(rough[0], {n: rough[1].get(n) for n in NAMES}, rough[2]),
        strict=True,
    )
    for name, mine, want, naive in pairs:
        largest = max(size(x) for x in (want, exact[0], *call.tensors))
        rows = call.seen.shape[0] * call.seen.shape[1] * max(call.seen.shape[2:])
        budget = 8 * off(naive, want) + 32 * low * (1 + largest) ** 2 * rows**0.5
        found.append((f"d{name}", off(mine, want), budget))
    return found


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


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_random_calls(kernel, dtype):
    count = {"float32": 60, "float64": 20, "bfloat16": 30}[dtype]
    assert check(kernel, range(count), DTYPES[dtype])


@pytest.mark.slow
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("part", range(4))
def test_thousands_of_random_calls(kernel, dtype, part):
    count = {"float32": 600, "float64": 150, "bfloat16": 250}[dtype]
    first = 10_000 * (part + 1)
    assert check(kernel, range(first, first + count), DTYPES[dtype])
