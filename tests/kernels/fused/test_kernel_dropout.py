"""Dropout of the fused kernel: the draws of kernels.noise, in both passes."""

import math

import pytest
import torch

import attentropy as at
from attentropy.kernels import noise
from attentropy.kernels.fused import kernel as fused
from tests.kernels.fused.cases import ISAS, by_fused, by_reference, make, run, serving

pytestmark = pytest.mark.skipif(not ISAS, reason="no fused kernel for this CPU")
SHAPES = [
    (2, 4, 2, 33, 47, 16, 8),
    (1, 2, 2, 3, 71, 32, 30),
    (1, 6, 2, 130, 303, 64, 64),
    (2, 1, 1, 65, 5, 8, 17),
]
EXTRAS = [(), ("causal",), ("causal", "window"), ("intervals", "bias"), ("mask", "softcap")]


def dropping(shape, extras, *, dtype=torch.float32, rate=0.3, seed=(5 << 40) + 12345):
    call = make(shape, extras, dtype=dtype)
    return call._replace(dropout=rate, seed=torch.tensor(seed))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("extras", EXTRAS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_same_as_the_reference(isa, shape, extras):
    call = dropping(shape, extras)
    with serving(isa):
        got = run(call, by_fused)
    want = run(call, by_reference)
    for name, x in want.items():
        torch.testing.assert_close(
            got[name], x, rtol=2e-5, atol=2e-5 * (1 + x[x.isfinite()].abs().max().item())
        )


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", SHAPES[:3], ids=str)
@pytest.mark.parametrize("extras", EXTRAS[:3], ids=str)
def test_low_precision(isa, dtype, shape, extras):
    call = dropping(shape, extras, dtype=dtype)
    with serving(isa):
        got = run(call, by_fused)
    want = run(call, by_reference)
    for name, x in want.items():
        loss = 8 * torch.finfo(dtype).eps
        size = x[x.isfinite()].abs().max().item()
        torch.testing.assert_close(got[name], x, rtol=loss, atol=loss * (1 + size))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("queries", [1, 4, 5, 70])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_which_weights_are_dropped(isa, queries, dtype):
    """With values of an identity the output is the weights themselves."""
    call = dropping((2, 3, 3, queries, 64, 8, 64), (), dtype=dtype)
    call = call._replace(q=torch.zeros_like(call.q), v=torch.eye(64, dtype=dtype).expand_as(call.v))
    with serving(isa):
        out = fused.attend(call).out
    want = noise.kept(int(call.seed), call.seen.where, rate=0.3, dtype=torch.float64) / 64
    assert torch.equal(out == 0, want == 0)
    torch.testing.assert_close(out.double(), want, rtol=1e-2, atol=0.0)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**32 + 7, 2**62 - 1])
@pytest.mark.parametrize("rate", [1e-9, 0.5, 0.999])
def test_seeds_and_rates(isa, seed, rate):
    call = dropping((1, 2, 1, 20, 40, 8, 8), ("causal",), rate=rate, seed=seed)
    with serving(isa):
        got = fused.attend(call)
    want = by_reference(call)
    torch.testing.assert_close(got.out, want[0], rtol=1e-4, atol=1e-5 / (1 - rate))
    torch.testing.assert_close(got.entropy, want[1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("isa", ISAS)
def test_rows_beside_a_hidden_nan_draw_the_same(isa):
    call = dropping((1, 1, 1, 70, 70, 16, 8), ("causal",))
    v = call.v.clone()
    v[0, 0, 69] = math.nan
    with serving(isa):
        clean, got = fused.attend(call).out, fused.attend(call._replace(v=v)).out
    torch.testing.assert_close(got[:, :, :69], clean[:, :, :69])
    assert got[:, :, 69].isnan().all()


def test_it_serves_dropout():
    q = torch.randn(1, 2, 9, 8)
    assert at.explain(q, q, q, dropout=0.5).kernel == "fused"
    found = []
    for kernel in ("fused", "streaming"):
        torch.manual_seed(1)
        found.append(at.key_mass(q, q, dropout=0.5, kernel=kernel))
    torch.testing.assert_close(*found)
