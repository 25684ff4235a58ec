"""The fused kernel under autograd and torch.compile."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

import attentropy as at
from attentropy.core.errors import UnsupportedError
from attentropy.kernels.fused import kernel as fused
from attentropy.kernels.fused.operators import OPERATORS
from attentropy.kernels.packing import INPUTS, pack
from tests.kernels.fused.cases import ISAS, make

pytestmark = pytest.mark.skipif(not ISAS, reason="no fused kernel for this CPU")


def arguments(extras, *, grad=True, dtype=torch.float32):
    call = make((1, 2, 1, 20, 30, 8, 6), extras, dtype=dtype)
    for name in INPUTS:
        x = getattr(call, name)
        if x is not None:
            x.requires_grad_(grad)
    return pack(call)


@pytest.mark.parametrize(
    "extras", [(), ("causal", "relative"), ("mask", "bias", "softcap", "alibi")]
)
def test_opcheck(extras):
    torch.library.opcheck(OPERATORS.forward_op, arguments(extras))
    torch.library.opcheck(OPERATORS.forward_op, arguments(extras, grad=False))


def loss(q, k, v):
    out, stats = at.attend(
        q, k, v, mask=at.causal, scale=at.LogLength(), softcap=30.0, kernel="fused"
    )
    return out.square().sum() + stats.entropy.sum() + stats.collision.sum() + stats.max_logit.sum()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dynamic", [False, True])
def test_compile_in_one_graph(dtype, dynamic):
    tensors = [torch.randn(2, 4, 40, 16).to(dtype).requires_grad_() for _ in range(3)]
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    want, got = loss(*tensors), compiled(*tensors)
    torch.testing.assert_close(got, want)
    for x, y in zip(
        torch.autograd.grad(got, tensors), torch.autograd.grad(want, tensors), strict=True
    ):
        assert torch.equal(x, y)


def test_double_backward_is_refused():
    q = torch.randn(1, 1, 5, 4, requires_grad=True)
    out = fused.attend(make_like(q)).out
    (g,) = torch.autograd.grad(out.sum(), q, create_graph=True)
    with pytest.raises(
        UnsupportedError, match="double backward is not supported by the fused kernel"
    ):
        g.sum().backward()


def make_like(q):

    return make((1, 1, 1, 5, 5, 4, 4))._replace(q=q)


def test_statistics_that_have_no_gradient():
    q = torch.randn(1, 1, 5, 4, requires_grad=True)
    rows = fused.attend(make_like(q))
    assert rows.entropy.requires_grad
    assert not rows.max_logit.requires_grad
    assert not rows.argmax.requires_grad


def test_gradient_that_is_a_broadcast_zero():
    q = torch.randn(1, 1, 5, 4, requires_grad=True)
    rows = fused.attend(make_like(q))
    (g,) = torch.autograd.grad(rows.lse.sum(), q)
    assert g.any()


def test_sink_through_attend():
    q, k, v = (torch.randn(1, 2, 30, 16) for _ in range(3))
    sink = torch.randn(2, requires_grad=True)
    got = at.attend(q, k, v, sink=sink, kernel="fused")
    want = at.attend(q.double(), k.double(), v.double(), sink=sink.double(), kernel="reference")
    torch.testing.assert_close(got.out.double(), want.out, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(
        got.stats.sink_mass.double(), want.stats.sink_mass, rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("by", ["q", "k", "out"])
def test_double_backward_is_refused_for_one_tensor_alone(by):
    q = torch.randn(1, 1, 5, 4, requires_grad=True)
    k = torch.randn(1, 1, 5, 4, requires_grad=True)
    out = fused.attend(make_like(q)._replace(k=k)).out
    (g,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
    with pytest.raises(UnsupportedError, match="double backward is not supported"):
        torch.autograd.grad(g.sum(), {"q": q, "k": k, "out": out}[by], allow_unused=True)


def test_fake_tensors_have_the_shapes_of_real_ones():
    with FakeTensorMode():
        q = torch.randn(2, 4, 5, 8, requires_grad=True)
        k, v = torch.randn(2, 2, 7, 8), torch.randn(2, 2, 7, 3)
        out, stats = at.attend(q, k, v, mask=at.causal, scale=at.LogLength())
        (out.sum() + stats.entropy.sum()).backward()
    assert out.shape == (2, 4, 5, 3)
    assert stats.entropy.shape == (2, 4, 5)
    assert q.grad.shape == q.shape


@pytest.mark.parametrize("mode", ["real", "fake"])
def test_recorded_graphs_compute_what_the_call_does(mode):
    tensors = [torch.randn(1, 2, 5, 8) for _ in range(3)]

    def out(*tensors):
        return at.attend(*tensors, mask=at.causal, kernel="fused").out

    graph = make_fx(out, tracing_mode=mode)(*tensors)
    others = [torch.randn(1, 2, 5, 8) for _ in range(3)]
    assert torch.equal(graph(*others), out(*others))


def test_dispatch_modes_see_the_operator():
    q = torch.randn(1, 2, 5, 8)

    class Names(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    seen = []
    with Names():
        at.attend(q, q, q, kernel="fused")
    assert "attentropy.fused.default" in seen


def test_the_default_device_is_not_that_of_the_tensors():
    tensors = [torch.randn(1, 2, 5, 8, requires_grad=True) for _ in range(3)]
    bias, table = (torch.randn(5, 5, requires_grad=True), torch.randn(2, 7, requires_grad=True))
    results = []
    for device in ("cpu", "meta"):
        with torch.device(device):
            for added in (bias, at.Relative(table)):
                given = {"mask": at.padding([3]), "bias": added, "kernel": "fused"}
                out, stats = at.attend(*tensors, **given)
                inputs = (*tensors, bias if added is bias else table)
                grads = torch.autograd.grad(out.sum() + stats.entropy.sum(), inputs)
                only = torch.autograd.grad(at.attend(*tensors, **given).stats.lse.sum(), tensors[0])
                results.append((out, stats.entropy, *grads, *only))
    for got, want in zip(results[2:], results[:2], strict=True):
        assert all(torch.equal(x, y) for x, y in zip(got, want, strict=True))


def test_batched_gradients_are_refused():
    q = torch.randn(1, 1, 5, 4, requires_grad=True)
    out = fused.attend(make_like(q)).out
    with pytest.raises(UnsupportedError, match="batched gradients .* not supported by the fused"):
        torch.autograd.grad(out, q, torch.randn(3, *out.shape), is_grads_batched=True)
