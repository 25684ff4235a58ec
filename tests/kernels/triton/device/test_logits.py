"""Functions of final logits against torch; whole tiles are in test_kernel_equivalence."""

import pytest
import torch
import triton
import triton.language as tl

from attentropy.core.call import Call
from attentropy.kernels import reference
from attentropy.kernels.triton.device.logits import exp, final, size_of, tanh
from attentropy.kernels.triton.device.visibility import load_row
from tests.kernels.triton.device.helpers import interpreted
from tests.kernels.triton.problems import problem, tensors


@triton.jit
def functions(x_ptr, e, t, N: tl.constexpr):
    n = tl.arange(0, N)
    x = tl.load(x_ptr + n)
    tl.store(e + n, exp(x))
    tl.store(t + n, tanh(x))


@triton.jit
def finished(into, seen_ptr, damp_ptr, x_ptr, terms, M: tl.constexpr, N: tl.constexpr):
    i, j = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :]
    alive = i < terms.queries
    row = load_row(terms, 0, 1, i, alive)
    at = i * N + j
    s, seen, damp = final(tl.load(x_ptr + at), row, j, terms, True)
    tl.store(into + at, tl.where(seen, tl.where(seen, s, 0.0) * size_of(row, terms), s))
    tl.store(seen_ptr + at, seen.to(tl.int32))
    tl.store(damp_ptr + at, damp + tl.zeros_like(s))


@interpreted
def test_functions_to_float32_rounding():
    x = torch.cat([torch.linspace(-30, 30, 48), torch.tensor([-1e-3, 1e-8, 0.2, 0.3] * 4)])
    e, t = (torch.empty_like(x) for _ in range(2))
    functions[(1,)](x, e, t, len(x))
    torch.testing.assert_close(e, x.exp(), rtol=2e-6, atol=0)
    torch.testing.assert_close(t, x.double().tanh().float(), rtol=4e-7, atol=0)


DRAWN = torch.Generator().manual_seed(7)
TERMS = {
    "scale": {"scale": torch.rand(1, 2, 9, generator=DRAWN)},
    "bounds": {
        "lo": torch.arange(9).int().view(1, 1, 9) // 2,
        "hi": torch.full((1, 1, 9), 7).int(),
    },
    "table": {"table": torch.rand(1, 2, 9, 11, generator=DRAWN) > 0.4},
    "bias": {
        "bias": torch.randn(1, 1, 9, 11, generator=DRAWN).masked_fill(
            torch.rand(9, 11, generator=DRAWN) > 0.7, -torch.inf
        )
    },
    "relative": {"relative": torch.randn(2, 5, generator=DRAWN)},
    "slopes": {"slopes": torch.rand(2, generator=DRAWN)},
    "softcap": {"softcap": 1.5},
}


@interpreted
@pytest.mark.parametrize("name", TERMS)
def test_each_term_of_a_tile(name):
    q, k, v = tensors()
    made = problem(q, k, v, **TERMS[name])
    x = torch.zeros(16, 16)
    x[:9, :11] = q[0, 1] @ k[0, 0].T
    into, damp = torch.full((16, 16), torch.nan), torch.full((16, 16), torch.nan)
    seen = torch.zeros(16, 16, dtype=torch.int32)
    finished[(1,)](into, seen, damp, x, made.terms(), 16, 16)
    call: Call = made.call
    shown = call.seen.dense()[0, 1]
    want = reference.logits(call, ~call.seen.dense())[0, 1].masked_fill(~shown, -torch.inf)
    torch.testing.assert_close(into[:9, :11], want.float(), rtol=1e-5, atol=1e-5)
    assert torch.equal(seen[:9, :11] > 0, shown)
    assert not seen[9:].any()
    slope = 1 - (want / 1.5).square() if name == "softcap" else torch.ones_like(want)
    torch.testing.assert_close(damp[:9, :11], slope.float(), rtol=1e-4, atol=1e-5)
