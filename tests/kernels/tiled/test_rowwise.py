"""Weights of whole rows in blocks, against the dense definition."""

import pytest
import torch

import attentropy as at
from attentropy.core.errors import UnsupportedError
from attentropy.kernels.tiled import tiles
from tests.cases import Shape, assert_same, run

KINDS = [at.Entmax(), at.Sparsemax(), at.Softpick()]


@pytest.mark.parametrize("weights", KINDS, ids=repr)
@pytest.mark.parametrize("mask", [None, at.causal & at.strided(3)], ids=["full", "strided"])
def test_many_small_blocks_and_ranges_of_keys(weights, mask, monkeypatch):
    monkeypatch.setattr(tiles, "MAX_KEYS", 10)
    monkeypatch.setattr(tiles, "TILE_ELEMENTS", 64)
    given = {"weights": weights, "mask": mask, "scale": 1.5}
    got = run("streaming", Shape(batch=1).tensors(), given)
    want = run("reference", Shape(batch=1).tensors(), given)
    assert_same(got, want, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("weights", KINDS, ids=repr)
def test_hidden_nan_stays_hidden(weights):
    q, k, v = (torch.randn(1, 1, 4, 8, dtype=torch.float64) for _ in range(3))
    spoilt = v.clone()
    spoilt[..., 3, :] = torch.nan
    out = at.attend(q, k, spoilt, mask=at.causal, weights=weights).out
    torch.testing.assert_close(
        out[..., :3, :], at.attend(q, k, v, mask=at.causal, weights=weights).out[..., :3, :]
    )
    assert out[..., 3, :].isnan().any() or weights == at.Softpick()


@pytest.mark.parametrize("weights", KINDS, ids=repr)
def test_low_precision_and_blind_rows(weights):
    q, k, v = (torch.randn(1, 2, 5, 8) for _ in range(3))
    low = at.attend(
        *(x.bfloat16() for x in (q, k, v)), weights=weights, mask=at.causal & ~at.lookback(1)
    )
    rounded = [x.bfloat16().double() for x in (q, k, v)]
    want = at.attend(
        *rounded, weights=weights, mask=at.causal & ~at.lookback(1), kernel="reference"
    )
    assert low.out.dtype == torch.bfloat16
    assert (low.out[:, :, 0] == 0).all()
    torch.testing.assert_close(low.out.double(), want.out, atol=2e-2, rtol=2e-2)
    torch.testing.assert_close(
        low.stats.collision.double(), want.stats.collision, atol=1e-5, rtol=1e-5
    )


def test_torch_compile_takes_the_reference():
    torch._dynamo.reset()
    q, k, v = (torch.randn(1, 1, 4, 8) for _ in range(3))
    compiled = torch.compile(lambda q: at.attend(q, k, v, weights=at.Entmax()).out, backend="eager")
    torch.testing.assert_close(compiled(q), at.attend(q, k, v, weights=at.Entmax()).out)
    with pytest.raises(UnsupportedError, match="does not support weights other than Softmax"):
        at.attend(q, k, v, weights=at.Entmax(), kernel="fused")
