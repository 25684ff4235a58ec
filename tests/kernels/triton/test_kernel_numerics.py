"""What must hold bit by bit: blind rows, one-hot rows, ties, NaN and inf, low precision."""

import pytest
import torch

import attentropy as at
from tests.cases import Shape

pytestmark = [pytest.mark.usefixtures("poisoned"), pytest.mark.interpreter]

SHAPE = Shape(batch=1, heads=2, key_heads=1, queries=40, keys=40)


def attend(*tensors, **given):
    return at.attend(*tensors, kernel="triton", **given)


def leaves(dtype=torch.float32, shape=SHAPE, size=1.0):
    return shape.tensors(dtype, size)


def test_blind_rows():
    q, k, v = leaves()
    visible = torch.ones(40, 40, dtype=torch.bool)
    visible[[0, 17, 39]] = False
    out, stats = attend(q, k, v, mask=visible)
    for row in (0, 17, 39):
        assert not out[:, :, row].any()
        assert not stats.entropy[:, :, row].any()
        assert not stats.collision[:, :, row].any()
        assert stats.lse[:, :, row].isneginf().all()
        assert stats.max_logit[:, :, row].isneginf().all()
        assert (stats.argmax[:, :, row] == -1).all()
    (out.sum() + stats.entropy.sum() + stats.collision.sum()).backward()
    assert not q.grad[:, :, [0, 17, 39]].any()
    assert all(x.grad.isfinite().all() for x in (q, k, v))


def test_a_row_that_sees_one_key_has_no_entropy_at_all():
    q, k, v = leaves(size=30.0)
    out, stats = attend(q, k, v, mask=at.causal & at.lookback(1))
    assert torch.equal(stats.entropy, torch.zeros_like(stats.entropy))
    assert torch.equal(stats.collision, torch.ones_like(stats.collision))
    torch.testing.assert_close(out, v.expand_as(out))


def test_a_saturated_row_has_no_entropy_at_all():
    q = torch.full((1, 1, 20, 16), 60.0)
    k = torch.zeros(1, 1, 50, 16)
    k[:, :, 33] = 9.0
    _, stats = attend(q, k, k)
    assert torch.equal(stats.entropy, torch.zeros_like(stats.entropy))


def test_entropy_keeps_its_digits_beside_large_logits():
    generator = torch.Generator().manual_seed(1)
    q = torch.ones(1, 1, 20, 16)
    k = (torch.randn(1, 1, 100, 1, generator=generator) / 64).expand(-1, -1, -1, 16) + 500.0
    _, stats = attend(q, k, k, scale=1.0)
    want = at.attend(q.double(), k.double(), k.double(), scale=1.0, kernel="reference").stats
    assert (stats.entropy - want.entropy).abs().max() < 1e-4
    assert stats.lse.min() > 7000


@pytest.mark.parametrize("shift", [0.0, 1e4, -1e4])
def test_gradients_do_not_know_of_a_common_shift(shift):
    s = (torch.randint(-4096, 4096, (20, 50)).float() / 1024).requires_grad_()
    q, k, v = torch.zeros(1, 1, 20, 4), torch.zeros(1, 1, 50, 4), torch.randn(1, 1, 50, 4)

    def gradient(kernel):
        out, stats = at.attend(q, k, v, bias=s + shift, kernel=kernel)
        loss = out.square().sum() + stats.entropy.square().sum() + stats.collision.sum()
        return torch.autograd.grad(loss, s)[0]

    assert (gradient("triton") - gradient("reference")).abs().max() <= 2e-6


@pytest.mark.parametrize(
    ("kind", "queries", "keys"),
    [("full", 20, 50), ("interval", 1, 520), ("interval", 20, 50), ("table", 20, 50),
     ("bias", 1, 50)],
)  # fmt: skip
def test_visible_rows_of_minus_infinity_are_nan_and_blind_rows_are_not(kind, queries, keys):
    q = torch.full((2, 1, queries, 4), -torch.inf)
    k = torch.ones(2, 1, keys, 4)
    lengths = torch.tensor([keys - 10, 0])
    table = torch.arange(keys) < lengths.view(2, 1, 1, 1)
    bias = torch.zeros(2, 1, 1, keys).masked_fill(~table, -torch.inf)
    given = {
        "full": {},
        "interval": {"mask": at.padding(lengths) & at.lookback(keys - queries - 19)},
        "table": {"mask": table},
        "bias": {"bias": bias},
    }[kind]
    out, stats = attend(q, k, k, **given)
    want = at.attend(q, k, k, kernel="reference", **given)
    for a, b in ((out, want.out), (stats.entropy, want.stats.entropy)):
        assert torch.equal(a.isnan(), b.isnan())
        assert torch.equal(a.nan_to_num(0.0), b.nan_to_num(0.0))
    assert torch.equal(stats.max_logit, want.stats.max_logit)
    assert torch.equal(stats.argmax, want.stats.argmax)
    assert out[0].isnan().all()


def test_the_lowest_number_is_a_logit_as_any_other():
    lowest = torch.finfo(torch.float32).min
    q, k = torch.zeros(1, 1, 3, 4), torch.zeros(1, 1, 50, 4)
    s = torch.full((3, 50), lowest)
    s[1, 40], s[2, 10] = -lowest, 0.0
    _, stats = attend(q, k, k, bias=s)
    want = at.attend(q, k, k, bias=s, kernel="reference").stats
    torch.testing.assert_close(stats.entropy, want.entropy)
    torch.testing.assert_close(stats.collision, want.collision)
    assert torch.equal(stats.argmax, want.argmax)


def test_ties_take_the_lowest_key_across_tiles_of_every_kind():
    k = torch.zeros(1, 1, 150, 2)
    k[:, :, 21:140] = 1.0
    _, stats = attend(torch.ones(1, 1, 20, 2), k, k, mask=at.lookback(145) & at.lookahead(9))
    assert (stats.argmax == 21).all()
    _, one = attend(torch.ones(1, 1, 1, 2), k.repeat(1, 1, 5, 1), k.repeat(1, 1, 5, 1))
    assert (one.argmax == 21).all()


@pytest.mark.parametrize("mask", [None, at.causal], ids=["full", "causal"])
def test_a_visible_logit_of_minus_infinity_has_no_weight_and_takes_no_entropy(mask):
    shape = Shape(batch=1, heads=1, key_heads=1, queries=40, keys=40)
    q, k, v = (x.detach() for x in leaves(shape=shape))
    q, k = q.abs(), k.clone()
    k[:, :, [3, 5]] = torch.finfo(torch.float32).min
    leaf = [x.clone().requires_grad_() for x in (q, k, v)]
    results = []
    for kernel in ("triton", "reference"):
        out, stats = at.attend(*leaf, mask=mask, kernel=kernel)
        kept = stats.visible > 6  # before that a row may see nothing but -inf
        loss = out[kept].square().sum() + stats.entropy[kept].sum() + stats.collision[kept].sum()
        grads = torch.autograd.grad(loss, leaf)
        results.append((out[kept], stats.entropy[kept], stats.argmax[kept], *grads))
    assert results[0][1].isfinite().all()
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "queries", "keys", "mask"),
    [
        ("q", 40, 50, None),
        ("q", 40, 50, at.causal & at.lookback(30)),
        ("k", 17, 50, None),
        ("k", 40, 50, at.causal & at.lookback(15)),
        ("k", 1, 520, at.causal & at.lookback(100)),
    ],
    ids=str,
)
def test_the_largest_logit_is_nan_at_the_first_nan(name, mask, queries, keys):
    shape = Shape(batch=1, heads=1, key_heads=1, queries=queries, keys=keys)
    q, k, v = (x.detach().clone() for x in leaves(shape=shape))
    if name == "q":
        q[:, :, queries // 2] = torch.nan
    else:
        k[:, :, [keys - 30, keys - 10]] = torch.nan
        k[:, :, keys - 20, 0] = torch.inf
    got = attend(q, k, v, mask=mask).stats
    want = at.attend(q, k, v, mask=mask, kernel="reference").stats
    assert want.max_logit.isnan().any()
    assert torch.equal(got.argmax, want.argmax)
    assert torch.equal(got.max_logit.isnan(), want.max_logit.isnan())
    assert torch.equal(got.entropy.isnan(), want.entropy.isnan())


@pytest.mark.parametrize("wild", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("name", ["k", "v"])
def test_a_hidden_key_reaches_nobody_and_a_visible_one_its_rows(name, wild):
    q, k, v = (x.detach() for x in leaves())
    spoiled = {"k": k, "v": v}
    spoiled[name] = spoiled[name].clone()
    spoiled[name][:, :, 25, 3] = wild
    got = attend(q, spoiled["k"], spoiled["v"], mask=at.causal)
    want = at.attend(q, spoiled["k"], spoiled["v"], mask=at.causal, kernel="reference")
    assert got.out[:, :, :25].isfinite().all()
    torch.testing.assert_close(got.out, want.out, equal_nan=True, atol=2e-6, rtol=1e-5)
    assert torch.equal(got.stats.entropy.isfinite(), want.stats.entropy.isfinite())
    if name == "k":
        assert got.stats.entropy[:, :, 25:].isnan().any()


@pytest.mark.parametrize("name", ["q", "k", "v", "dout"])
def test_gradients_of_what_cannot_see_a_nan_stay_finite(name):
    given = dict(zip("qkv", (x.detach().clone() for x in leaves()), strict=True))
    weight = torch.randn(1, 2, 40, 8)
    place = weight if name == "dout" else given[name]
    place[:, :, 20] = torch.nan
    leaf = {n: x.requires_grad_() for n, x in given.items()}
    out, stats = attend(*leaf.values(), mask=at.causal & at.lookback(4))
    rows = torch.ones(40, dtype=torch.bool)
    ((out * weight).sum(-1) + stats.entropy)[..., rows].sum().backward()
    touched = {"q": (20, 21), "k": (20, 24), "v": (20, 24), "dout": (20, 21)}[name]
    beyond = [i for i in range(40) if not touched[0] <= i < touched[1]]
    assert leaf["q"].grad[:, :, beyond].isfinite().all()
    assert leaf["q"].grad[:, :, touched[0] : touched[1]].isnan().all()
    far = [i for i in range(40) if not 17 <= i < 24]
    for x in (leaf["k"].grad, leaf["v"].grad):
        assert x[:, :, far].isfinite().all()
    assert leaf["k"].grad[:, :, 20].isnan().all()


def naive(q, k, v, visible):
    """Dense attention and its statistics, done in the precision of the inputs."""
    s = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~visible, -torch.inf)
    log_p = s.log_softmax(-1)
    p = log_p.exp()
    entropy = -(p * log_p.masked_fill(p == 0, 0.0)).sum(-1)
    return p @ v, entropy, s.logsumexp(-1), p.square().sum(-1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_low_precision_errs_no_more_than_the_naive_computation(dtype):
    shape = Shape(batch=1, heads=1, key_heads=1, queries=63, keys=63, width=64, value_width=64)
    tensors = shape.tensors(dtype)
    visible = torch.ones(63, 63, dtype=torch.bool).tril()
    weights = [torch.randn(63, 64, dtype=torch.float64), *torch.randn(3, 63, dtype=torch.float64)]

    def gradients(results, inputs):
        loss = sum((a.double() * w).sum() for a, w in zip(results, weights, strict=True))
        return torch.autograd.grad(loss, inputs)

    wide = [x.detach().double().requires_grad_() for x in tensors]
    exact = naive(*wide, visible)
    rough = naive(*tensors, visible)
    out, stats = attend(*tensors, mask=at.causal)
    got = (out, stats.entropy, stats.lse, stats.collision)
    assert out.dtype == dtype
    assert stats.entropy.dtype == torch.float32
    triples = [*zip(got, rough, exact, strict=True)]
    grads = (gradients(x, y) for x, y in ((got, tensors), (rough, tensors), (exact, wide)))
    triples += [*zip(*grads, strict=True)]
    for a, b, c in triples:
        assert (a - c).abs().max() <= 2 * (b - c).abs().max()


@pytest.mark.parametrize(
    "scale",
    [-0.7, 0.0, torch.tensor([0.7, -0.7]), torch.linspace(-1, 1, 40)[None, None]],
    ids=["negative", "zero", "of both signs by head", "of both signs by row"],
)
def test_scales_of_every_sign_where_all_keys_are_seen(scale):
    q, k, v = leaves()
    got = attend(q, k, v, scale=scale)
    want = at.attend(*(x.detach().double() for x in (q, k, v)), scale=scale, kernel="reference")
    torch.testing.assert_close(got.out.double(), want.out, atol=1e-5, rtol=1e-5)
    for name in ("entropy", "varentropy", "collision", "lse", "max_logit"):
        pair = (getattr(x.stats, name).double() for x in (got, want))
        torch.testing.assert_close(*pair, atol=1e-5, rtol=1e-5)
    assert torch.equal(got.stats.argmax, want.stats.argmax)
