"""The operators as torch sees them."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import attentropy as at
from attentropy.kernels.packing import INPUTS, pack
from attentropy.kernels.triton.operators import OPERATORS
from tests.kernels.triton.problems import call


def arguments(*, grad=True):
    q, k, v = torch.randn(1, 2, 5, 4), torch.randn(1, 1, 7, 4), torch.randn(1, 1, 7, 3)
    scale, bias, relative = torch.rand(1, 2, 1), torch.randn(1, 1, 5, 7), torch.randn(2, 5)
    leaves = [x.requires_grad_(grad) for x in (q, k, v, scale, bias, relative)]
    q, k, v, scale, bias, relative = leaves
    hi = torch.arange(3, 8, dtype=torch.int32).view(1, 1, 5)
    return call(
        q, k, v, scale=scale, hi=hi, bias=bias, relative=relative, dropout=0.2, seed=torch.tensor(7)
    )


def test_opcheck_of_the_forward_operator():
    torch.library.opcheck(OPERATORS.forward_op, pack(arguments()))


def test_opcheck_of_the_backward_operator():
    given = arguments(grad=False)
    results = OPERATORS.forward(given)
    grads = [torch.randn_like(results.out), None, torch.randn_like(results.lse), *[None] * 5]
    needs = [True, True, True, True, True, False, False]
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(
        OPERATORS.backward_op, (*pack(given), list(results), grads, needs), test_utils=checks
    )


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiles_into_one_graph(backend):
    q, k, v = (x.detach().requires_grad_() for x in pack(arguments())[:3])

    def loss(q, k, v):
        out, stats = at.attend(q, k, v, mask=at.causal, softcap=3.0, kernel="triton")
        return out.sum() + stats.entropy.sum() + stats.sparsity.sum()

    want = torch.autograd.grad(loss(q, k, v), (q, k, v))
    got = torch.compile(loss, fullgraph=True, backend=backend)(q, k, v)
    torch.testing.assert_close(got, loss(q, k, v))
    for a, b in zip(torch.autograd.grad(got, (q, k, v)), want, strict=True):
        torch.testing.assert_close(a, b)


def on_cuda(*shape, dtype=torch.bfloat16):
    return torch.empty(shape, device="cuda", dtype=dtype)


def test_fake_cuda_tensors_pass_forward_and_backward():
    with FakeTensorMode():
        q, k, v = on_cuda(1, 4, 50, 16), on_cuda(1, 2, 60, 16), on_cuda(1, 2, 60, 8)
        out, stats = at.attend(q, k, v, mask=at.causal)
        assert (out.shape, out.dtype, out.device.type) == ((1, 4, 50, 8), q.dtype, "cuda")
        assert stats.entropy.dtype == torch.float32
        assert stats.argmax.device.type == "cuda"
        scale, bias = on_cuda(1, 1, 1, dtype=torch.float32), on_cuda(1, 1, 50, 60)
        visible = torch.empty(1, 4, 50, dtype=torch.int64, device="cuda")
        given = call(q, k, v, scale=scale, bias=bias, dropout=0.1, visible=visible)
        results = OPERATORS.forward(given)
        grads = {"out": results.out, "lse": results.lse}
        needs = {name: name in ("q", "k", "v", "bias") for name in INPUTS}
        found = OPERATORS.backward(given, results, grads, needs)
        assert [None if g is None else g.shape for g in found] == [
            x.shape if needs[n] else None for n, x in zip(INPUTS, pack(given), strict=False)
        ]
        assert {g.device.type for g in found if g is not None} == {"cuda"}


def test_a_graph_of_cuda_tensors_holds_the_operator():
    """What torch.compile records where there is a GPU: traced on fake tensors."""

    def attention(q, k, v):
        out, stats = at.attend(q, k, v, mask=at.causal)
        return out, stats.entropy

    with FakeTensorMode():
        graph = make_fx(attention)(*(on_cuda(1, 2, 40, 16) for _ in range(3))).graph
    called = [str(node.target) for node in graph.nodes if node.op == "call_function"]
    assert called.count("attentropy.triton.default") == 1
