"""The tiled kernel against the reference: every option, mask and shape, forward and backward."""

import pytest
import torch

import attentropy as at
from attentropy.kernels.tiled import bounded
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


def test_ties_take_the_lowest_key():
    k = torch.zeros(1, 1, 300, 2)
    k[:, :, 131:290] = 1.0
    out, stats = at.attend(torch.ones(1, 1, 1, 2), k, k, kernel="streaming")
    assert stats.argmax.item() == 131


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


@pytest.mark.usefixtures("units")
def test_rows_of_one_key_have_no_entropy_at_all():
    q, k, v = (torch.randn(1, 2, n, 8) for n in (40, 40, 40))
    stats = at.attend(q, k, v, mask=at.lookback(1) & at.causal, kernel="streaming").stats
    assert (stats.entropy == 0).all()
    assert torch.equal(stats.lse, stats.max_logit)
