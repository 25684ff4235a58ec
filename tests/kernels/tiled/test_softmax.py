import pytest
import torch

import attentropy as at
from attentropy.core.resolve import Options, resolve
from attentropy.kernels.tiled import bounded, means, scratch, tiles
from tests.cases import SHAPES, Shape, assert_same, masks, options, run

pytestmark = pytest.mark.usefixtures("poisoned")


@pytest.fixture(params=["nats", "bits", "near"])
def units(request, monkeypatch):
    """Small calls made to take the ways of large ones."""
    if request.param != "nats":
        monkeypatch.setattr(bounded, "_LARGE", 1)
        monkeypatch.setattr(bounded, "_NEAR", 0.0 if request.param == "bits" else 16.0)


@pytest.mark.usefixtures("units")
@pytest.mark.parametrize("name", options(Shape()))
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_options_equal_the_reference(shape, name):
    given, tensors = options(shape)[name], shape.tensors()
    want = run("reference", tensors, given)
    assert_same(run("streaming", tensors, given), want, atol=1e-11, rtol=1e-10)


@pytest.mark.usefixtures("units")
@pytest.mark.parametrize("name", masks(Shape()))
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_masks_equal_the_reference(shape, name):
    found = masks(shape)
    if name not in found:
        pytest.skip("documents need a key for every query")
    given, tensors = {"mask": found[name]}, shape.tensors()
    want = run("reference", tensors, given)
    assert_same(run("streaming", tensors, given), want, atol=1e-11, rtol=1e-10)


@pytest.mark.parametrize("name", ["plain", "softcap", "alibi", "dropout", "l2", "gumbel"])
def test_many_small_tiles_change_nothing(name, monkeypatch):
    shape = Shape(queries=40, keys=150)
    given, tensors = options(shape)[name], shape.tensors()
    want = run("reference", tensors, given)
    monkeypatch.setattr(tiles, "TILE_ELEMENTS", 64)
    monkeypatch.setattr(tiles, "MAX_KEYS", 16)
    monkeypatch.setattr(tiles, "MIN_ROWS", 3)
    assert_same(run("streaming", tensors, given), want, atol=1e-11, rtol=1e-10)


def naive(q, k, v, visible):
    """Dense attention and its statistics, done in the precision of the inputs."""
    s = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~visible, -torch.inf)
    log_p = s.log_softmax(-1)
    p = log_p.exp()
    entropy = -(p * log_p.masked_fill(p == 0, 0.0)).sum(-1)
    return p @ v, entropy, s.logsumexp(-1), p.square().sum(-1)


@pytest.mark.usefixtures("units")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_low_precision_errs_no_more_than_the_naive_computation(dtype):
    shape = Shape(key_heads=4, queries=111, keys=111, width=64, value_width=64)
    tensors = [x.detach() for x in shape.tensors(dtype)]
    visible = at.causal.dense(at.masks.Extent(1, 1, 111, 111, torch.device("cpu")))
    exact = naive(*(x.double() for x in tensors), visible)
    budget = [(a - b).abs().max() for a, b in zip(naive(*tensors, visible), exact)]
    out, stats = at.attend(*tensors, mask=at.causal, kernel="streaming")
    got = (out, stats.entropy, stats.lse, stats.collision)
    assert out.dtype == dtype
    assert stats.entropy.dtype == torch.float32
    for a, b, allowed in zip(got, exact, budget):
        assert (a - b).abs().max() <= 2 * allowed


def test_gradcheck():
    shape = Shape(batch=1, heads=2, key_heads=1, queries=3, keys=4, width=3, value_width=2)

    def outputs(q, k, v, bias, sink):
        out, stats = at.attend(
            q, k, v, bias=bias, sink=sink, mask=at.causal, softcap=2.0,
            scale=at.LogLength(3.0), kernel="streaming",
        )  # fmt: skip
        return out, stats.entropy, stats.lse, stats.collision, stats.sink_mass

    bias = torch.randn(1, 2, 3, 4, dtype=torch.float64, requires_grad=True)
    sink = torch.randn(2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(outputs, (*shape.tensors(), bias, sink))


def test_double_backward_is_refused():
    q, k, v = Shape().tensors()
    out, _ = at.attend(q, k, v, kernel="streaming")
    (g,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
    with pytest.raises(at.UnsupportedError, match="double backward is not supported by the stream"):
        g.sum().backward()


@pytest.mark.parametrize("needs", [(0,), (1,), (2,), (0, 2)])
def test_any_subset_of_inputs_may_need_gradients(needs):
    tensors = [x.detach().requires_grad_(i in needs) for i, x in enumerate(Shape().tensors())]
    want = run("reference", tensors, {"mask": at.causal})
    assert_same(run("streaming", tensors, {"mask": at.causal}), want, atol=1e-11, rtol=1e-10)


def test_strided_inputs():
    q, k, v = (x.detach() for x in Shape(queries=47).tensors())
    apart = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
    assert not apart[0].is_contiguous()
    want = at.attend(q, k, v, mask=at.causal, kernel="streaming")
    assert torch.equal(at.attend(*apart, mask=at.causal, kernel="streaming").out, want.out)


def test_long_rows_span_several_tiles():
    q, k = torch.randn(1, 1, 3, 4), torch.randn(1, 1, 2 * tiles.MAX_KEYS + 5, 4)
    got = at.attend(q, k, k, kernel="streaming")
    want = at.attend(q.double(), k.double(), k.double(), kernel="reference")
    torch.testing.assert_close(got.stats.entropy, want.stats.entropy.float(), atol=2e-6, rtol=0)
    assert torch.equal(got.stats.argmax, want.stats.argmax)


def test_ties_take_the_lowest_key():
    k = torch.zeros(1, 1, 300, 2)
    k[:, :, 131:290] = 1.0
    out, stats = at.attend(torch.ones(1, 1, 1, 2), k, k, kernel="streaming")
    assert stats.argmax.item() == 131


@pytest.mark.parametrize("size", [255, 511, 512, 513, 600, 640, 1023, 2000])
@pytest.mark.parametrize("levels", [2, 1000])
def test_the_maximum_and_its_lowest_index(size, levels):
    s = torch.randint(-levels, levels, (2, 7, size)).float()
    s[0, 0, -1], s[0, 1, 3], s[1, 0] = torch.nan, torch.nan, -torch.inf
    m, found = means.largest(s)
    want = s.amax(-1, keepdim=True)
    first = torch.where((s == want) | s.isnan() & want.isnan(), torch.arange(size), size).amin(-1)
    assert torch.equal(found, first)
    assert torch.equal(m.nan_to_num(7.0), want[..., 0].nan_to_num(7.0))


@pytest.mark.parametrize("largest", [0.5, 7.9, 8.1, 100.0, 1e4])
@pytest.mark.parametrize("spread", [1e-3, 1.0, 30.0])
def test_entropy_keeps_its_digits_wherever_the_logits_are(largest, spread):
    logits = largest - spread * torch.rand(1, 1, 1, 700)
    logits[..., 5] = largest
    want = torch.distributions.Categorical(logits=logits.double()).entropy()
    q, k = torch.zeros(1, 1, 1, 1), torch.ones(1, 1, 700, 1)
    stats = at.attend(q, k, k, bias=logits, kernel="streaming").stats
    assert (stats.entropy >= 0).all()
    torch.testing.assert_close(stats.entropy.double(), want, atol=6e-7, rtol=3e-7)


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


@pytest.mark.usefixtures("units")
def test_rows_of_one_key_have_no_entropy_at_all():
    q, k, v = (torch.randn(1, 2, n, 8) for n in (40, 40, 40))
    stats = at.attend(q, k, v, mask=at.lookback(1) & at.causal, kernel="streaming").stats
    assert (stats.entropy == 0).all()
    assert torch.equal(stats.lse, stats.max_logit)


def test_peaked_rows_of_large_calls_have_no_negative_entropy():
    q, k = (torch.zeros(1, 1, n, 4) for n in (1100, 1000))
    q[..., 0], k[..., 0] = torch.linspace(1.0, 5.6, 1100), -5.6
    k[0, 0, 77, 0] = 5.6
    entropy = at.attend(q, k, k, kernel="streaming").stats.entropy
    exact = at.attend(q.double(), k.double(), k.double(), kernel="reference").stats.entropy
    plain = at.attend(q, k, k, kernel="streaming", bias=torch.zeros(1, 1, 1, 1)).stats.entropy
    assert (entropy >= 0).all()
    assert (entropy - exact).abs().max() <= 2 * (plain - exact).abs().max()


@pytest.mark.parametrize("value", [3e38, torch.inf, torch.nan])
def test_large_calls_of_extreme_values(value):
    q, k, v = (torch.randn(1, 1, n, 8) for n in (1100, 1000, 1000))
    v[..., 0], v[0, 0, 7, 1] = min(value, 3e38), value
    want = at.attend(q.double(), k.double(), v.double(), kernel="reference").out
    got = at.attend(q, k, v, kernel="streaming").out
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("weights", [None, at.Linear()])
@pytest.mark.parametrize("mask", [None, at.lookback(2), lambda b, h, q, k: (q + k) % 3 == 0])
def test_rows_of_minus_infinity_name_their_first_visible_key(mask, weights):
    q, k = torch.ones(1, 1, 3, 2), torch.full((1, 1, 6, 2), -torch.inf)
    given = {"mask": mask, "weights": weights}
    want = at.attend(q, k, q[:, :, :1].expand_as(k), kernel="reference", **given).stats
    got = at.attend(q, k, q[:, :, :1].expand_as(k), kernel="streaming", **given).stats
    assert torch.equal(got.argmax, want.argmax)


@pytest.mark.parametrize("library", [tiles._ONEDNN, None])
def test_large_products_by_either_library(library, monkeypatch):
    monkeypatch.setattr(tiles, "_ONEDNN", library)
    q, k, v = (torch.randn(1, 1, n, d) for n, d in ((700, 40), (1100, 40), (1100, 24)))
    got = at.attend(q, k, v, kernel="streaming")
    want = at.attend(q.double(), k.double(), v.double(), kernel="reference")
    torch.testing.assert_close(got.out.double(), want.out, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(got.stats.entropy.double(), want.stats.entropy, atol=2e-6, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_memory_of_huge_pages_or_without(dtype, monkeypatch):
    def refused(*args, **kwargs):
        raise OSError

    size = (1 << 20) + 3
    found = [scratch._memory(size, dtype=dtype)]
    monkeypatch.setattr(scratch.mmap, "mmap", refused)
    found.append(scratch._memory(size, dtype=dtype))
    for x in found:
        assert (len(x), x.dtype) == (size, dtype)
        assert x.fill_(2).sum() == 2 * size
