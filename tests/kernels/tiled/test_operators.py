"""Calls of the tiled kernel that are recorded, batched, differentiated twice, or beside a device."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

import attentropy as at
from attentropy.core.resolve import Options, resolve
from attentropy.kernels.packing import pack
from attentropy.kernels.tiled.operators import SOFTMAX, SUMS
from tests.cases import Shape

WEIGHTS = [at.Softmax(), at.Linear(), at.L2(at.ReluSquared()), at.Gumbel(0.5)]


@pytest.fixture(params=WEIGHTS, ids=str)
def attend(request):
    def call(q, k, v, **given):
        torch.manual_seed(3)
        return at.attend(q, k, v, weights=request.param, kernel="streaming", **given)

    return call


def tensors(*, needs=False):
    return [torch.randn(1, 2, 5, 8, requires_grad=needs) for _ in range(3)]


@pytest.mark.parametrize("by", ["q", "k", "out"])
def test_double_backward_is_refused_for_one_tensor_alone(attend, by):
    q, k, v = tensors(needs=True)
    out = attend(q, k, v).out
    (g,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
    with pytest.raises(at.UnsupportedError, match="double backward is not supported by the stream"):
        torch.autograd.grad(g.sum(), {"q": q, "k": k, "out": out}[by], allow_unused=True)


def test_batched_gradients_are_refused(attend):
    q, k, v = tensors(needs=True)
    out = attend(q, k, v).out
    with pytest.raises(at.UnsupportedError, match="batched gradients .* not supported by the str"):
        torch.autograd.grad(out, q, torch.randn(3, *out.shape), is_grads_batched=True)


def test_fake_tensors_have_the_shapes_of_real_ones(attend):
    with FakeTensorMode():
        q, k, v = tensors(needs=True)
        out, stats = attend(q, k, v, mask=at.causal)
        (out.sum() + stats.collision.sum()).backward()
    assert out.shape == q.grad.shape == (1, 2, 5, 8)
    assert stats.collision.shape == (1, 2, 5)


def test_recorded_graphs_compute_what_the_call_does():
    def out(*tensors):
        return at.attend(*tensors, mask=at.causal, kernel="streaming").out

    graph = make_fx(out)(*tensors())
    others = tensors()
    assert torch.equal(graph(*others), out(*others))


def test_the_default_device_is_not_that_of_the_tensors(attend):
    given = tensors()
    want = attend(*given, mask=at.padding([3])).out

    def elsewhere():
        with torch.device("meta"):
            return attend(*given, mask=at.padding([3])).out

    with ThreadPoolExecutor(1) as fresh:  # scratch memory belongs to a thread
        assert torch.equal(fresh.submit(elsewhere).result(), want)
        assert torch.equal(fresh.submit(attend, *given, mask=at.padding([3])).result().out, want)


def test_operators_pass_the_checks_of_torch():
    shape = Shape(batch=1, heads=2, key_heads=1, queries=3, keys=4, width=3, value_width=2)
    for weights, made in ((at.Softmax(), SOFTMAX), (at.L1(), SUMS)):
        call = resolve(*shape.tensors(torch.float32), Options(mask=at.causal, weights=weights))
        torch.library.opcheck(made.forward_op, pack(call))


class Passing(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("mask", [at.causal & at.strided(2), ~(at.causal & at.strided(3))], ids=str)
def test_dispatch_modes_do_not_lose_a_mask_that_is_a_predicate(attend, mask):
    given = tensors()
    want = attend(*given, mask=mask)
    with Passing():
        got = attend(*given, mask=mask)
    torch.testing.assert_close(got.out, want.out)
    assert torch.equal(got.stats.visible, want.stats.visible)
    torch.testing.assert_close(got.stats.collision, want.stats.collision)
