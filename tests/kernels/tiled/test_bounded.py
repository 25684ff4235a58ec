"""Large calls of bounded logits, which are computed in bits and mostly without their maximum."""

import math

import pytest
import torch

import attentropy as at
from attentropy.core.resolve import Options, resolve
from attentropy.kernels.tiled import bounded
from attentropy.kernels.tiled.tiles import MAX_KEYS

pytestmark = pytest.mark.usefixtures("poisoned")


def reach(q, k, v, **given):
    return bounded.reach(resolve(q, k, v, Options(**given)))


@pytest.mark.parametrize("size", [1.0, 4.0, 20.0])
@pytest.mark.parametrize("mask", [None, at.causal & at.lookback(300)], ids=["full", "window"])
def test_large_calls_of_small_and_large_logits(size, mask):
    q, k, v = (torch.randn(2, 2, n, 24) for n in (517, 1033, 1033))
    q *= size
    reach = bounded.reach(resolve(q, k, v, Options(mask=mask)))
    assert (reach <= bounded._NEAR, reach <= bounded.REACH) == (size < 2, size < 10)
    exact = at.attend(*(x.double() for x in (q, k, v)), mask=mask, kernel="reference")
    plain = at.attend(q, k, v, mask=mask, kernel="streaming", bias=torch.zeros(1, 1, 1, 1))
    got = at.attend(q, k, v, mask=mask, kernel="streaming")
    assert torch.equal(got.stats.argmax, exact.stats.argmax)
    for name in ("entropy", "lse", "max_logit", "collision"):
        a, b, want = (getattr(x.stats, name) for x in (got, plain, exact))
        assert (a - want).abs().max() <= 2 * (b - want).abs().max() + 1e-6
    assert (got.out - exact.out).abs().max() <= 2 * (plain.out - exact.out).abs().max() + 1e-7


def test_logits_that_are_exact_stay_so_in_large_calls():
    q, k, v = (torch.zeros(1, 1, n, 4) for n in (1100, 1000, 1000))
    q[..., 0], k[..., 0] = 200.0, 100.0
    q[..., 1], k[..., 1] = 1.0, torch.arange(1000) % 3
    want = torch.distributions.Categorical(logits=k[0, 0, :, 1].double() / 2).entropy()
    entropy = at.attend(q, k, v, kernel="streaming").stats.entropy.double()
    torch.testing.assert_close(entropy, want.expand_as(entropy), atol=1e-6, rtol=0)


def test_peaked_rows_of_large_calls_have_no_negative_entropy():
    q, k = (torch.zeros(1, 1, n, 4) for n in (1100, 1000))
    q[..., 0], k[..., 0] = torch.linspace(1.0, 5.6, 1100), -5.6
    k[0, 0, 77, 0] = 5.6
    entropy = at.attend(q, k, k, kernel="streaming").stats.entropy
    exact = at.attend(q.double(), k.double(), k.double(), kernel="reference").stats.entropy
    plain = at.attend(q, k, k, kernel="streaming", bias=torch.zeros(1, 1, 1, 1)).stats.entropy
    assert (entropy >= 0).all()
    assert (entropy - exact).abs().max() <= 2 * (plain - exact).abs().max()


@pytest.mark.parametrize("size", [2.5, 5.6])
def test_nearly_one_hot_rows_of_large_calls_keep_their_digits(size):
    q, k = (torch.zeros(1, 1, n, 4) for n in (1100, 1000))
    q[..., 0], k[..., 0] = torch.linspace(1.0, size, 1100), -size
    k[0, 0, 77, 0] = size
    assert reach(q, k, k) <= (bounded._NEAR if size < 3 else bounded.REACH)
    s = q[0, 0, :, 0].double() * size / 2
    rest = 999 * (-2 * s).exp()
    want = rest.log1p() + 2 * s * rest / (1 + rest)
    entropy = at.attend(q, k, k, kernel="streaming").stats.entropy[0, 0]
    torch.testing.assert_close(entropy.double(), want, atol=0, rtol=2e-5)


@pytest.mark.parametrize("value", [3e38, torch.inf, torch.nan])
def test_large_calls_of_extreme_values(value):
    q, k, v = (torch.randn(1, 1, n, 8) for n in (1100, 1000, 1000))
    v[..., 0], v[0, 0, 7, 1] = min(value, 3e38), value
    want = at.attend(q.double(), k.double(), v.double(), kernel="reference").out
    got = at.attend(q, k, v, kernel="streaming").out
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5, equal_nan=True)


def test_the_bound_is_that_of_cauchy_and_schwarz():
    q, k, v = (torch.randn(1, 2, n, 8) for n in (700, 1000, 1000))
    s = at.attend(q, k, v, scale=0.3).stats.max_logit
    found = reach(q, k, v, scale=0.3)
    assert s.abs().max() <= found
    assert found == pytest.approx(0.3 * float(q.norm(dim=-1).max() * k.norm(dim=-1).max()))


@pytest.mark.parametrize(
    "given",
    [{"softcap": 3.0}, {"bias": torch.zeros(1)}, {"bias": at.ALiBi()}, {"weights": at.Gumbel()},
     {"bias": at.Relative(torch.zeros(3))}],
    ids=["softcap", "bias", "alibi", "gumbel", "relative"],
)  # fmt: skip
def test_calls_that_add_to_the_product_are_not_served(given):
    q, k, v = (torch.randn(1, 2, n, 8) for n in (700, 1000, 1000))
    assert reach(q, k, v) < math.inf
    assert reach(q, k, v, **given) == math.inf


def test_small_calls_long_rows_and_large_values_are_not_served():
    q, k = torch.randn(1, 1, 128, 4), torch.randn(1, 1, MAX_KEYS, 4)
    assert reach(q, k, k) < math.inf
    assert reach(q[:, :, :100], k, k) == math.inf
    assert reach(q, torch.cat([k, k[:, :, :1]], 2), torch.cat([k, k[:, :, :1]], 2)) == math.inf
    assert reach(q, k, k * 1e36) == math.inf
    assert reach(q * torch.nan, k, k) == math.inf
