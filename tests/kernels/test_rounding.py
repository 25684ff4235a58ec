import pytest
import torch

import attentropy as at

KERNELS = ["streaming", "reference"]


def cancelling(width=8, keys=6):
    """Queries and keys whose products cancel, but not in floating point."""
    q = torch.randn(1, 1, 4, width // 2)
    k = torch.randn(1, 1, keys, width // 2)
    return torch.cat([q, -q], -1), torch.cat([k, k], -1)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("weights", [at.L1(), at.L2(), at.L1(at.ReluSquared())])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_rows_whose_scores_are_zero_stay_zero(kernel, weights, dtype):
    for width in (8, 30, 128):
        q, k = (x.to(dtype) for x in cancelling(width))
        out, stats = at.attend(q, k, k, weights=weights, kernel=kernel)
        assert not out.any()
        assert not stats.collision.any()


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("weights", [at.L1(), at.L2()])
@pytest.mark.parametrize("size", [1e-30, 1e-15, 1.0])
def test_small_rows_are_normalised_as_others_are(kernel, weights, size):
    q, k, v = (torch.randn(1, 2, 5, 8) for _ in range(3))
    small, stats = at.attend(q * size, k * size, v, weights=weights, kernel=kernel)
    want, of_ones = at.attend(q.double(), k.double(), v.double(), weights=weights)
    torch.testing.assert_close(small, want.float(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(stats.collision, of_ones.collision.float(), rtol=1e-5, atol=1e-6)
    assert stats.collision.isfinite().all()


def test_a_nan_of_a_hidden_key_says_nothing_about_other_rows():
    q, k = cancelling()
    k[0, 0, 5] = torch.nan
    out = at.attend(q, k, torch.ones_like(k), weights=at.L1(), mask=at.prefix(5)).out
    assert not out.any()
