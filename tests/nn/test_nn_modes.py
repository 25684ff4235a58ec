"""Every layer in train and eval, compiled, checkpointed, under autocast, copied, saved."""

import copy
from contextlib import nullcontext

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import attentropy as at
from tests.nn.every_layer import LAYERS

nn = at.nn


@pytest.fixture(params=LAYERS)
def layer(request):
    return LAYERS[request.param]()


def gradients(module):
    return [p.grad for p in module.parameters()]


def test_train_and_eval_agree_and_every_parameter_gets_a_gradient(layer):
    x = torch.randn(2, 9, 16)
    trained = layer(x)
    torch.testing.assert_close(trained.out, copy.deepcopy(layer).eval()(x).out)
    trained.out.square().sum().backward()
    assert all(g is not None and g.isfinite().all() for g in gradients(layer))


COMPILED = ("multihead", "relative", "cosine", "gau", "gau softmax")  # the others take a minute


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n in COMPILED else [pytest.mark.slow]) for n in LAYERS],
)
def test_compiled_in_one_graph(name):
    torch._dynamo.reset()
    x, layer = torch.randn(2, 9, 16), LAYERS[name]().eval()
    plain = copy.deepcopy(layer)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    out, stats = compiled(x)
    want, known = plain(x)
    torch.testing.assert_close(out, want)
    torch.testing.assert_close(stats.collision, known.collision)
    out.square().sum().backward()
    want.square().sum().backward()
    for got, expected in zip(gradients(layer), gradients(plain), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


SHARED = ["grouped", "relative", "sinusoidal", "gau"]


@pytest.mark.parametrize(
    "name", ["multihead", *(pytest.param(n, marks=pytest.mark.slow) for n in SHARED)]
)
def test_lengths_share_a_graph(name):
    layer = LAYERS[name]()
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(layer.eval(), fullgraph=True, backend="aot_eager")
    for length in (9, 12, 31):
        x = torch.randn(2, length, 16)
        torch.testing.assert_close(compiled(x).out, layer(x).out)
    # one of the first length, and one of all
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed(layer, reentrant):
    x = torch.randn(2, 9, 16)
    plain = copy.deepcopy(layer)
    plain(x).out.square().sum().backward()
    inputs = x.clone().requires_grad_()
    out = checkpoint(lambda u: layer(u).out, inputs, use_reentrant=reentrant)
    out.square().sum().backward()
    for got, want in zip(gradients(layer), gradients(plain), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(layer, dtype):
    x = torch.randn(2, 9, 16)
    want = copy.deepcopy(layer)(x)
    with torch.autocast("cpu", dtype=dtype):
        out, stats = layer(x)
    assert out.dtype == dtype
    assert stats.collision.dtype == torch.float32
    torch.testing.assert_close(out.float(), want.out, rtol=0.05, atol=0.05)


def test_saved_and_loaded(layer, tmp_path):
    x = torch.randn(2, 9, 16)
    other = copy.deepcopy(layer)
    with torch.no_grad():
        for p in other.parameters():
            p.add_(1.0)
    torch.save(layer.state_dict(), tmp_path / "layer.pt")
    other.load_state_dict(torch.load(tmp_path / "layer.pt", weights_only=True))
    torch.testing.assert_close(other.eval()(x).out, layer.eval()(x).out)


def test_an_empty_batch_and_an_empty_sequence(layer):
    for shape in ((0, 5, 16), (2, 0, 16)):
        if shape[1] == 0 and isinstance(getattr(layer, "scale", None), nn.AdaptiveScale):
            continue
        assert layer(torch.zeros(shape)).out.shape == shape


@pytest.mark.parametrize("watched", [False, True])
def test_the_first_call_of_its_shape_is_recomputed_alike(watched):
    """Checkpointing counts what is saved: no shortcut may be taken the second time."""
    layer = at.nn.MultiheadAttention(16, 2, mask=at.causal)
    fresh = torch.randn(1, 41 + watched, 16, requires_grad=True)
    with at.watch(layer) if watched else nullcontext():
        checkpoint(lambda u: layer(u).out, fresh, use_reentrant=False).square().sum().backward()
    got, fresh.grad = fresh.grad, None
    layer(fresh).out.square().sum().backward()
    torch.testing.assert_close(got, fresh.grad)
