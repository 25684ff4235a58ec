"""The numeric contract at the edges, for every kernel that is there."""

import math

import pytest
import torch

import attentropy as at
from attentropy.attention.choice import KERNELS

NAMES = [name for name in KERNELS if name != "linear"]


@pytest.fixture(params=NAMES)
def kernel(request):
    q = torch.zeros(1, 1, 2, 16)
    reason = at.explain(q, q, q).lacking[request.param]
    if reason is not None:
        pytest.skip(f"{request.param} lacks {reason}")
    return request.param


def rows(scores, *, kernel, values=None, **given):
    """Attention whose logits are the rows of `scores`."""
    s = torch.as_tensor(scores, dtype=torch.float32)
    queries, keys = s.shape
    q = torch.zeros(1, 1, queries, 16)
    k = torch.zeros(1, 1, keys, 16)
    v = torch.ones(1, 1, keys, 4) if values is None else values
    return at.attend(q, k, v, bias=s, kernel=kernel, **given)


def test_one_hot_is_exactly_zero(kernel):
    _, stats = rows(
        [[0.0, -500.0, -1e30], [1e30, 0.0, -1e30], [5.0, 5.0 - 120, 5 - 1e4]], kernel=kernel
    )
    assert stats.entropy.flatten().tolist() == [0.0, 0.0, 0.0]
    assert stats.collision.flatten().tolist() == [1.0, 1.0, 1.0]


def test_entropy_stays_between_its_bounds(kernel):
    for spread in (0.0, 1e-30, 1e-3, 1.0, 30.0, 1e4):
        stats = rows(torch.randn(40, 77) * spread, kernel=kernel).stats
        assert (stats.entropy >= 0).all()
        assert (stats.entropy <= math.log(77) + 1e-6).all()


def test_a_common_shift_costs_nothing(kernel):
    s = torch.randint(-4096, 4096, (50, 77)).float() / 1024
    want = rows(s.double(), kernel="reference").stats.entropy
    for shift in (0.0, 1e4, -1e4):
        assert (rows(s + shift, kernel=kernel).stats.entropy - want).abs().max() <= 2e-6


def test_blind_rows(kernel):
    q, k, v = (torch.randn(2, 2, 9, 16, requires_grad=True) for _ in range(3))
    out, stats = at.attend(q, k, v, mask=~at.causal, kernel=kernel)
    blind = stats.visible == 0
    assert blind.sum() == 4
    assert (out[blind] == 0).all()
    assert (stats.entropy[blind] == 0).all()
    assert (stats.collision[blind] == 0).all()
    assert (stats.lse[blind] == -math.inf).all()
    assert (stats.max_logit[blind] == -math.inf).all()
    assert (stats.argmax[blind] == -1).all()
    loss = out.sum() + stats.entropy.sum() + stats.collision.sum() + stats.lse[~blind].sum()
    grads = torch.autograd.grad(loss, (q, k, v))
    assert all(g.isfinite().all() for g in grads)
    assert (grads[0][blind] == 0).all()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("where", ["q", "k", "v"])
def test_bad_numbers_reach_those_who_see_them_and_no_one_else(kernel, where, bad):
    tensors = {name: torch.randn(2, 2, 9, 16) for name in "qkv"}
    clean = at.attend(**tensors, mask=at.causal, kernel=kernel)
    tensors[where][0, 1, 4, 3] = bad
    out, stats = at.attend(**tensors, mask=at.causal, kernel=kernel)
    reached = torch.zeros(2, 2, 9, dtype=torch.bool)
    reached[0, 1, 4 : 5 if where == "q" else None] = True
    # values far above others leave a weight of zero, and q = inf with k of one sign may be finite
    assert not out[reached].isfinite().all()
    torch.testing.assert_close(out[~reached], clean.out[~reached])
    if where != "v":
        torch.testing.assert_close(stats.entropy[~reached], clean.stats.entropy[~reached])
    if math.isnan(bad):
        assert out[reached].isnan().any(-1).all()


def test_rows_of_minus_infinity_that_are_not_masked_are_nan(kernel):
    q = torch.full((1, 1, 1, 16), -math.inf)
    k = torch.ones(1, 1, 5, 16)
    out, stats = at.attend(q, k, torch.ones_like(k), kernel=kernel)
    assert out.isnan().all()
    assert stats.entropy.isnan().all()
    assert (stats.argmax >= 0).all()


@pytest.mark.parametrize("keys", [3, 70])
@pytest.mark.parametrize("sign", [-1, 1])
def test_infinite_logits_give_their_infinite_lse(kernel, sign, keys):
    q = torch.full((1, 1, 6, 16), sign * math.inf)
    stats = at.attend(q, torch.ones(1, 1, keys, 16), torch.ones(1, 1, keys, 4), kernel=kernel).stats
    assert (stats.lse == sign * math.inf).all()
    assert (stats.max_logit == sign * math.inf).all()
    assert stats.entropy.isnan().all()


def test_single_logits_of_minus_infinity_weigh_nothing(kernel):
    q, v = torch.ones(1, 1, 2, 16, requires_grad=True), torch.randn(1, 1, 5, 4)
    k = torch.randn(1, 1, 5, 16)
    k[0, 0, 2] = -1e38
    got = at.attend(q, k, v, kernel=kernel)
    rest = [0, 1, 3, 4]
    want = at.attend(q, k[:, :, rest], v[:, :, rest], kernel=kernel)
    torch.testing.assert_close(got.out, want.out)
    torch.testing.assert_close(got.stats.entropy, want.stats.entropy)
    (d_q,) = torch.autograd.grad(got.stats.entropy.sum(), q)
    assert d_q.isfinite().all()


@pytest.mark.parametrize("size", [1e-40, 1e-20, 1e4, 1e15])
def test_tiny_and_huge_inputs(kernel, size):
    q, k, v = (torch.randn(1, 2, 7, 16) for _ in range(3))
    got = at.attend(q * size, k, v, kernel=kernel)
    want = at.attend((q * size).double(), k.double(), v.double(), kernel="reference")
    torch.testing.assert_close(got.stats.entropy, want.stats.entropy.float(), atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(got.out, want.out.float(), atol=1e-4, rtol=1e-4)
