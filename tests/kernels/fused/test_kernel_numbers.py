"""The numeric contract of the fused kernel: blind rows, NaN and inf, one-hot rows, huge logits."""

import math

import pytest
import torch

from attentropy.core.visibility import Span
from attentropy.kernels import reference
from attentropy.kernels.fused import kernel as fused
from tests.kernels.fused.cases import ISAS, error, make, serving, within

pytestmark = pytest.mark.skipif(not ISAS, reason="no fused kernel for this CPU")
DTYPES = [torch.float32, torch.bfloat16]
MASKS = [(), ("causal",), ("causal", "window"), ("mask",), ("hiding bias",)]


def wide(call):
    return call._replace(q=call.q.double(), k=call.k.double(), v=call.v.double())


def spoil(call, name, value, *, row=77):
    x = getattr(call, name).clone()
    x[0, 0, row, 3] = value
    return call._replace(**{name: x})


def gradients(call):
    leaves = {n: getattr(call, n).detach().requires_grad_() for n in ("q", "k", "v")}
    rows = fused.attend(call._replace(**leaves))
    flowing = [rows.out, rows.entropy, rows.lse, rows.collision]
    return torch.autograd.grad(
        flowing, list(leaves.values()), [torch.ones_like(x) for x in flowing]
    )


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [3, 150])
def test_rows_that_see_nothing(isa, dtype, rows):
    call = make((1, 2, 1, rows, 150, 32, 32), dtype=dtype)
    lo = torch.full((1, 1, rows), 20).int()
    hi = torch.where(torch.arange(rows) % 2 == 0, 20, 90).int().view(1, 1, rows)
    call = within(call, lo, hi)
    with serving(isa):
        got = fused.attend(call)
        dq, dk, dv = gradients(call)
    for x, value in zip(got[:6], (0, 0, -math.inf, -math.inf, -1, 0), strict=True):
        assert (x[:, :, ::2] == value).all()
        assert not (x[:, :, 1::2] == value).all()
    assert not dq[:, :, ::2].any()
    assert dq.isfinite().all()
    for x in (dk, dv):
        assert x[:, :, 20:90].any()
        assert not x[:, :, 90:].any()
        assert not x[:, :, :20].any()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["q", "k", "v"])
@pytest.mark.parametrize("mask", MASKS, ids=" ".join)
def test_nan_and_inf_reach_what_sees_them_and_nothing_else(isa, bad, name, mask):
    call = spoil(make((1, 2, 1, 150, 150, 32, 32), mask), name, bad)
    with serving(isa):
        got = fused.attend(call)
        _, dk, dv = gradients(call)
    want = reference.attend(wide(call))
    for x, y in zip(got[:6], want[:6], strict=True):
        assert torch.equal(x.isnan(), y.isnan())
        assert torch.equal(x.isinf(), y.isinf())
        finite = y.isfinite()
        torch.testing.assert_close(x[finite].double(), y[finite].double(), rtol=1e-4, atol=1e-5)
    # a key keeps finite gradients unless a row that sees it has gone bad
    bad_rows = ~want.out.isfinite().all(-1) | want.entropy.isnan()
    touched = (call.seen.dense() & bad_rows[..., None]).any(-2).any(1)
    for x in (dk, dv):
        assert x[0, 0][~touched[0]].isfinite().all()
    assert name == "v" or dv[0, 0][touched[0]].isnan().any(-1).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("extras", [("causal",), ("causal", "softcap")], ids=" ".join)
def test_queries_before_a_key_of_nan_keep_their_gradients(isa, extras):
    clean = make((1, 2, 1, 150, 150, 32, 32), extras)
    with serving(isa):
        got, want = gradients(spoil(clean, "k", math.nan))[0], gradients(clean)[0]
    torch.testing.assert_close(got[:, :, :77], want[:, :, :77], rtol=0, atol=1e-6)
    assert got[:, :, 77:].isnan().any(-1).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["k", "v"])
def test_nan_stays_in_its_head_and_batch(dtype, name):
    call = spoil(make((2, 2, 2, 70, 100, 16, 16), dtype=dtype), name, math.nan)
    out = fused.attend(call).out
    assert out[0, 0].isnan().any(-1).all()
    assert out[0, 1].isfinite().all()
    assert out[1].isfinite().all()


@pytest.mark.parametrize("payload", [0x7FFFFFFF, -1, 0x7FC00001])
def test_nan_of_any_payload(payload):
    call = make((1, 1, 1, 70, 70, 16, 16))
    nan = torch.tensor(payload, dtype=torch.int32).view(torch.float32)
    k = call.k.clone()
    k[0, 0, 9, 5] = nan
    got = fused.attend(call._replace(k=k))
    assert got.out.isnan().all()
    assert got.entropy.isnan().all()


def test_all_visible_logits_minus_infinity_is_not_blindness():
    call = make((1, 1, 1, 70, 40, 8, 8))
    q = torch.ones_like(call.q)
    k = torch.zeros_like(call.k)
    k[..., 0] = -math.inf
    got = fused.attend(call._replace(q=q, k=k))
    assert got.out.isnan().all()
    assert got.entropy.isnan().all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [2, 100])
def test_one_hot_rows_have_no_entropy_at_all(isa, dtype, rows):
    call = make((1, 1, 1, rows, 300, 32, 32), dtype=dtype)
    only = torch.arange(rows).int().view(1, 1, rows) * 2
    with serving(isa):
        one = fused.attend(within(call, only, only + 1))
        k = torch.zeros_like(call.k)
        k[0, 0, 200] = 1
        sharp = fused.attend(
            call._replace(q=torch.ones_like(call.q), k=k, scale=torch.full((1, 1, 1), 37.0))
        )
    for got in (one, sharp):
        assert (got.entropy == 0).all()
        assert (got.collision == 1).all()
    assert (sharp.argmax == 200).all()
    assert torch.equal(one.argmax, only.long())


@pytest.mark.parametrize("isa", ISAS)
def test_entropy_at_a_large_offset(isa):
    call = make((1, 1, 1, 80, 500, 16, 16))
    g = torch.Generator().manual_seed(0)
    k = torch.zeros(1, 1, 500, 16)
    k[..., 0] = 1e4
    k[..., 1] = torch.randint(-8, 9, (500,), generator=g) / 4  # sums that float32 holds exactly
    call = call._replace(q=torch.ones_like(call.q), k=k, scale=torch.ones(1, 1, 1))
    with serving(isa):
        got = fused.attend(call)
    assert error(got.entropy, reference.attend(wide(call)).entropy) <= 2e-6


@pytest.mark.parametrize("size", [1e4, 1e30, 1e-42])
def test_huge_and_tiny_logits(size):
    call = make((1, 2, 1, 100, 130, 16, 16), ("causal",))
    call = call._replace(q=call.q * size)
    got, want = fused.attend(call), reference.attend(wide(call))
    torch.testing.assert_close(got.max_logit.double(), want.max_logit, rtol=1e-5, atol=1e-30)
    torch.testing.assert_close(
        got.entropy.double(), want.entropy, rtol=0, atol=2e-2 if size == 1e4 else 2e-6
    )
    assert all(g.isfinite().all() for g in gradients(call)) or size == 1e30


def test_ties_go_to_the_lowest_key():
    call = make((1, 1, 1, 70, 700, 8, 8))
    got = fused.attend(call._replace(k=torch.zeros_like(call.k)))
    assert (got.argmax == 0).all()
    assert torch.equal(got.entropy, torch.full_like(got.entropy, math.log(700)))
    seen = call.seen.select(Span(queries=slice(0, 2))).rebased()
    few = call._replace(q=call.q[:, :, :2], k=torch.zeros_like(call.k), seen=seen)
    assert (fused.attend(few).argmax == 0).all()


def test_long_flat_rows_stay_below_log_visible():
    call = make((1, 1, 1, 64, 8192, 8, 8))
    got = fused.attend(call._replace(q=call.q * 1e-3))
    assert (got.entropy <= math.log(8192) + 1e-6).all()


@pytest.mark.parametrize("tops", [(5, 16), (16, 21), (17, 33), (0, 699), (699,)])
def test_one_query_finds_the_lowest_of_ties(tops):
    call = make((1, 1, 1, 1, 700, 8, 8))
    k = torch.zeros_like(call.k)
    k[0, 0, list(tops)] = 2.0
    got = fused.attend(call._replace(q=torch.ones_like(call.q), k=k))
    assert got.argmax.item() == min(tops)


def test_one_query_meets_nan_and_minus_infinity_as_many_do():
    call = make((1, 1, 1, 1, 40, 8, 8))
    q = torch.ones_like(call.q)
    k = call.k.clone()
    k[0, 0, 3] = -torch.inf
    got, want = (x.attend(call._replace(q=q, k=k)) for x in (fused, reference))
    torch.testing.assert_close(got.entropy, want.entropy.float())
    torch.testing.assert_close(got.out, want.out.float())
    k[0, 0, 20] = torch.nan
    spoilt = fused.attend(call._replace(q=q, k=k))
    assert spoilt.entropy.isnan().all()
    assert spoilt.out.isnan().all()
    assert spoilt.argmax.item() == 20


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("width", [15, 16])
def test_rows_that_overlap_in_memory(isa, dtype, width):
    call = make((1, 2, 2, 8, 8, width, width), layouts=("overlapping rows",) * 3, dtype=dtype)
    assert call.q.stride()[2:] == (1, 1)
    apart = call._replace(q=call.q.contiguous(), k=call.k.contiguous(), v=call.v.contiguous())
    with serving(isa):
        assert torch.equal(fused.attend(call).out, fused.attend(apart).out)
        for got, want in zip(gradients(call), gradients(apart), strict=True):
            assert torch.equal(got, want)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1e5, 8e6, 1e24])
@pytest.mark.parametrize("extra", [(), ("alibi",), ("relative",), ("bias",), ("softcap",)])
def test_weights_of_few_queries_sum_to_one_in_the_backward_pass_too(isa, dtype, size, extra):
    for rows in (1, 3, 4, 5):
        call = make((1, 2, 1, rows, 300, 64, 8), extra, dtype=dtype)
        grown = {"q": call.q * size**0.5, "k": call.k * size**0.5, "v": torch.ones_like(call.v)}
        with serving(isa):
            *_, dv = gradients(call._replace(**grown))
        total = dv[..., 0].double().sum().item()
        # of a few terms, each of them rounded to the dtype of v
        assert total == pytest.approx(2 * rows, rel=32 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_beside_a_hidden_nan_are_summed_in_the_order_of_their_panel(isa, dtype):
    call = make((1, 1, 1, 70, 70, 64, 8), ("causal",), dtype=dtype)
    call = call._replace(q=call.q * 1e4, k=call.k * 1e3, v=torch.ones_like(call.v))
    with serving(isa):
        clean, got = fused.attend(call), fused.attend(spoil(call, "k", math.nan, row=69))
        *_, dv = gradients(call)
        *_, dv_beside = gradients(spoil(call, "k", math.nan, row=69))
    assert torch.equal(got.max_logit[:, :, :69], clean.max_logit[:, :, :69])
    assert torch.equal(got.argmax[:, :, :69], clean.argmax[:, :, :69])
    assert dv_beside.isnan().all()  # the last query sees the NaN, and every key is seen by it
    assert dv.double()[..., 0].sum().item() == pytest.approx(70, rel=1e-2)
