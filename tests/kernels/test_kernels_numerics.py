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


@pytest.fixture
def knowing(kernel):
    """A kernel that computes varentropy."""
    if rows([[0.0, 1.0]], kernel=kernel).stats.varentropy.isnan().any():
        pytest.skip(f"{kernel} lacks varentropy")
    return kernel


def test_one_hot_rows_have_no_varentropy(knowing):
    _, stats = rows([[0.0, -500.0, -1e30], [1e30, 0.0, -1e30], [5.0, -115, -1e4]], kernel=knowing)
    assert stats.varentropy.flatten().tolist() == [0.0, 0.0, 0.0]


def varentropy_of(scores):
    """Oracle: rows of logits in float64."""
    s = scores.double()
    log_p = s.log_softmax(-1)
    p = log_p.exp()
    surprise = log_p.masked_fill(p == 0, 0.0)
    return (p * (surprise - (p * surprise).sum(-1, keepdim=True)).square()).sum(-1)


@pytest.mark.parametrize("level", [0.0, -3.0, 1e4])
@pytest.mark.parametrize("keys", [1, 2, 77, pytest.param(1500, marks=pytest.mark.slow)])
def test_uniform_rows_have_no_varentropy(knowing, keys, level):
    stats = rows(torch.full((9, keys), level), kernel=knowing).stats
    assert stats.varentropy.flatten().tolist() == [0.0] * 9


def test_varentropy_is_zero_wherever_entropy_is(knowing):
    gaps = torch.arange(60.0, 130.0)
    stats = rows(torch.stack([torch.zeros_like(gaps), -gaps], 1), kernel=knowing).stats
    assert (stats.varentropy >= 0).all()
    assert (stats.entropy == 0).any()
    assert (stats.varentropy[stats.entropy == 0] == 0).all()


@pytest.mark.parametrize("spread", [1e-3, 0.03, 1.0, 5.0])
@pytest.mark.parametrize("keys", [5, 77, 700, pytest.param(3000, marks=pytest.mark.slow)])
def test_varentropy_keeps_its_digits(knowing, keys, spread):
    scores = torch.randn(20, keys, generator=torch.Generator().manual_seed(keys)) * spread
    scores[::2, keys // 3] += 1.0 + 3 * spread  # one key above a flat rest
    want = varentropy_of(scores)
    got = rows(scores, kernel=knowing).stats.varentropy[0, 0]
    assert got.dtype == torch.float32
    assert ((got - want).abs() <= 1e-5 * want).all()


def test_a_maximum_that_comes_late_costs_varentropy_nothing(knowing):
    scores = torch.randn(12, 2000, generator=torch.Generator().manual_seed(0)).double()
    scores[:, 1200] = torch.linspace(5, 60, 12)
    scores[:, 1900] = torch.linspace(0, 75, 12)
    want = varentropy_of(scores.float())
    got = rows(scores, kernel=knowing).stats.varentropy[0, 0]
    torch.testing.assert_close(got.double(), want, atol=1e-30, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_varentropy_of_every_dtype_is_float32(knowing, dtype):
    q, k, v = (torch.randn(1, 2, 40, 16).to(dtype) for _ in range(3))
    stats = at.attend(q, k, v, mask=at.causal, kernel=knowing).stats
    s = (q.double() @ k.double().mT / 4).masked_fill(~torch.ones(40, 40).tril().bool(), -math.inf)
    assert stats.varentropy.dtype == torch.float32
    torch.testing.assert_close(stats.varentropy.double(), varentropy_of(s), atol=1e-6, rtol=1e-5)


def test_varentropy_alone_has_the_gradient_that_it_has_among_others(knowing):
    leaf = [torch.randn(1, 1, n, 8).requires_grad_() for n in (5, 9, 9)]
    found = [
        torch.autograd.grad(
            at.attend(*leaf, kernel=knowing, stats=stats).stats.varentropy.sum(), leaf[:2]
        )
        for stats in ("all", {"varentropy"})
    ]
    for alone, among in zip(*found, strict=True):
        torch.testing.assert_close(alone, among, atol=1e-6, rtol=1e-5)


def entropy_of(scores):
    """Oracle: rows of logits in float64, the largest apart, so that 1 + tiny is never formed."""
    s = scores.double().sort(-1, descending=True).values
    z = s[..., 1:] - s[..., :1]
    e = z.exp()
    rest = e.sum(-1)
    return rest.log1p() - (z * e).sum(-1) / (1 + rest)


@pytest.fixture
def apart(kernel):
    """A kernel that sums the largest weight apart from the others."""
    if kernel == "triton":
        pytest.skip("triton's entropy of nearly one-hot rows is right to 1e-7, not to its digits")
    return kernel


GAPS = torch.linspace(0, 70, 41)


@pytest.mark.parametrize("rows_at_once", [1, 41])
@pytest.mark.parametrize(("keys", "at_key"), [(2, 0), (2, 1), (37, 20), (1500, 3), (1500, 1490)])
def test_nearly_one_hot_rows_keep_their_digits(apart, keys, at_key, rows_at_once):
    scores = torch.randn(41, keys)
    scores[:, at_key] = scores.amax(-1) + GAPS
    want = entropy_of(scores), varentropy_of(scores)
    stats = [rows(part, kernel=apart).stats for part in scores.split(rows_at_once)]
    for name, exact in zip(("entropy", "varentropy"), want, strict=True):
        got = torch.cat([getattr(x, name)[0, 0] for x in stats]).double()
        torch.testing.assert_close(got, exact, atol=1e-30, rtol=1e-5)


def test_so_do_they_beside_a_sink(apart):
    scores = torch.stack([torch.randn(41), torch.randn(41) - GAPS, torch.randn(41) - 50], 1)
    for sink in (-20.0, 0.0, 30.0):
        got = rows(scores, kernel=apart, sink=torch.tensor([sink])).stats
        whole = torch.cat([scores, torch.full((41, 1), sink)], 1)
        torch.testing.assert_close(got.entropy[0, 0].double(), entropy_of(whole), atol=0, rtol=1e-5)


def test_so_do_they_where_two_intervals_of_keys_are_seen(apart):
    scores = torch.randn(41, 90)
    scores[:, 70] += GAPS
    seen = torch.zeros(41, 90, dtype=torch.bool)
    seen[:, :10] = seen[:, 60:] = True
    mask = at.prefix(10) | ~at.prefix(60)
    got = rows(scores, kernel=apart, mask=mask).stats
    assert torch.equal(got.visible[0, 0], seen.sum(-1))
    for name, oracle in (("entropy", entropy_of), ("varentropy", varentropy_of)):
        want = oracle(scores.masked_fill(~seen, -1e4))
        torch.testing.assert_close(getattr(got, name)[0, 0].double(), want, atol=1e-30, rtol=1e-5)


def test_their_gradients_are_right_to_their_digits(apart):
    scores = torch.stack([torch.zeros(41), -GAPS - 1, -GAPS - 2], 1).requires_grad_()
    (got,) = torch.autograd.grad(rows(scores, kernel=apart).stats.entropy.sum(), scores)
    exact = scores.detach().double().requires_grad_()
    (want,) = torch.autograd.grad(entropy_of(exact).sum(), exact)
    atol = 1e-15 if apart == "reference" else 1e-30  # autograd adds up numbers near 1, in float64
    torch.testing.assert_close(got.double(), want, atol=atol, rtol=1e-5)


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


def test_a_common_shift_costs_varentropy_nothing(knowing):
    s = torch.randint(-4096, 4096, (50, 77)).float() / 1024
    for shift in (0.0, 1e4, -1e4):
        got = rows(s + shift, kernel=knowing).stats.varentropy[0, 0]
        torch.testing.assert_close(got.double(), varentropy_of(s), atol=0, rtol=1e-5)


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


@pytest.mark.parametrize("queries", [3, 9])
@pytest.mark.parametrize("rule", [False, True])
def test_blind_rows_have_no_gradient_whatever_their_scale(kernel, rule, queries):
    q, k, v = (torch.randn(1, 2, n, 16, requires_grad=True) for n in (queries, 9, 9))
    kappa = torch.ones((), requires_grad=True)
    counts = at.attend(q, k, v, mask=~at.causal, kernel=kernel).stats.visible
    scale = counts.log().requires_grad_()  # -inf where nothing is seen
    given = (lambda _, visible: kappa * visible.log()) if rule else scale
    out, stats = at.attend(q, k, v, mask=~at.causal, scale=given, kernel=kernel)
    loss = out.sum() + stats.entropy.sum()
    dq, *others = torch.autograd.grad(loss, (q, k, v, kappa if rule else scale))
    assert (dq[counts == 0] == 0).all()
    assert all(x.isfinite().all() for x in others)


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


@pytest.mark.parametrize("queries", [3, 6])
def test_their_gradients_are_nan_and_go_to_what_they_see(kernel, queries):
    q, k, v = (torch.ones(1, 1, n, 16) for n in (queries, 9, 9))
    q[:, :, 1] = -math.inf
    leaves = [x.requires_grad_() for x in (q, k, v)]
    seen = torch.arange(9) % 3 == torch.arange(queries)[:, None] % 3
    out = at.attend(*leaves, mask=seen, kernel=kernel).out
    for x, lost in zip(torch.autograd.grad(out.sum(), leaves), (1, seen[1], seen[1]), strict=True):
        assert x[0, 0, lost].isnan().all()
        assert x.isnan().sum() == x[0, 0, lost].numel()


@pytest.mark.parametrize("queries", [3, 6])
@pytest.mark.parametrize("mask", [at.full, at.causal])
def test_an_infinite_key_that_weighs_nothing_is_seen_all_the_same(kernel, mask, queries):
    q, k, v = (torch.ones(1, 1, queries, 16) for _ in range(3))
    k[0, 0, 1, 5] = -math.inf
    out, stats = at.attend(q.requires_grad_(), k, v, mask=mask, kernel=kernel)
    assert out.isfinite().all()
    (dq,) = torch.autograd.grad(stats.entropy.sum(), q)  # 0 * inf
    sees = stats.visible[0, 0] > 1
    assert dq[0, 0, sees, 5].isnan().all()
    assert dq.isnan().sum() == sees.sum()


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


def test_varentropy_of_blind_rows(knowing):
    q, k, v = (torch.randn(2, 2, 9, 16, requires_grad=True) for _ in range(3))
    stats = at.attend(q, k, v, mask=~at.causal, kernel=knowing).stats
    blind = stats.visible == 0
    assert (stats.varentropy[blind] == 0).all()
    d_q, d_k = torch.autograd.grad(stats.varentropy.sum(), (q, k))
    assert d_q.isfinite().all()
    assert d_k.isfinite().all()
    assert (d_q[blind] == 0).all()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("where", ["q", "k"])
def test_bad_numbers_reach_the_varentropy_of_those_who_see_them(knowing, where, bad):
    tensors = {name: torch.randn(2, 2, 9, 16) for name in "qkv"}
    clean = at.attend(**tensors, mask=at.causal, kernel=knowing).stats
    tensors[where][0, 1, 4, 3] = bad
    stats = at.attend(**tensors, mask=at.causal, kernel=knowing).stats
    same = torch.ones(2, 2, 9, dtype=torch.bool)
    same[0, 1, 4 : 5 if where == "q" else None] = False
    torch.testing.assert_close(stats.varentropy[same], clean.varentropy[same])
    assert torch.equal(stats.varentropy.isnan(), stats.entropy.isnan())
