"""Two passes as one differentiable function, shown on a kernel of one line: out = 2 q, top = max q."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import attentropy as at
from attentropy.core.resolve import Options, resolve
from attentropy.kernels.packing import INPUTS, pack
from attentropy.kernels.passes import Operators, Passes


class Doubled(NamedTuple):
    out: Tensor
    top: Tensor


def forward(call):
    calls.append("forward")
    return Doubled(2 * call.q, call.q.amax(-1))


def backward(call, results, grads, needs):
    calls.append(sorted(name for name, need in needs.items() if need))
    assert grads["top"] is None
    assert torch.equal(results.out, 2 * call.q)
    assert (call.bias is None) == (call.seen.added is None)
    return tuple(2 * grads["out"] if name == "q" and needs[name] else None for name in INPUTS)


def empty(call):
    return Doubled(torch.empty_like(call.q), call.q.new_empty(call.q.shape[:3]))


calls = []
MADE = {}


def operators():
    if not MADE:
        MADE["only"] = Operators(PASSES)
    return MADE["only"]


PASSES = Passes("doubled", "little", Doubled, ("out",), forward, backward, empty, operators)
operators()


@pytest.fixture(autouse=True)
def forget():
    calls.clear()


def call(*, needs=True, **given):
    q, k = torch.randn(1, 2, 3, 4, requires_grad=needs), torch.randn(1, 2, 5, 4)
    return resolve(q, k, k, Options(**given))


def test_names_of_results_and_of_constants():
    assert PASSES.fields == ("out", "top")
    assert PASSES.constant == (1,)


def test_without_gradients_the_pass_is_called_as_it_is():
    made = call(needs=False)
    results = PASSES(made)
    assert torch.equal(results.out, 2 * made.q)
    assert not results.out.requires_grad
    assert calls == ["forward"]


@pytest.mark.parametrize(
    "given", [{}, {"mask": torch.ones(3, 5).tril().bool()}, {"bias": torch.zeros(3, 5)},
              {"bias": at.ALiBi()}], ids=["plain", "table", "bias", "slopes"]
)  # fmt: skip
def test_gradients_flow_through_what_flows(given):
    made = call(**given)
    results = PASSES(made)
    assert isinstance(results, Doubled)
    assert not results.top.requires_grad
    (g,) = torch.autograd.grad(results.out.sum(), made.q)
    assert torch.equal(g, torch.full_like(made.q, 2.0))
    assert calls == ["forward", ["q"]]


def test_a_mask_that_is_changed_meanwhile_is_noticed():
    mask = torch.ones(3, 5).tril().bool()
    made = call(mask=mask)
    out = PASSES(made).out
    mask.fill_(True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_saved_tensors_go_through_hooks():
    made, packed = call(), []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: packed.append(x) or x, lambda x: x):
        PASSES(made)
    assert any(x is made.q or torch.equal(x, made.q) for x in packed)


def test_a_second_derivative_is_refused_by_the_name_of_the_kernel():
    made = call()
    (g,) = torch.autograd.grad(PASSES(made).out.sum(), made.q, create_graph=True)
    with pytest.raises(at.UnsupportedError, match="double backward is not supported by the little"):
        g.sum().backward()


@pytest.mark.parametrize("recorded", [False, True])
def test_one_gradient_without_autograd(recorded):
    made = call(needs=False)
    grads = {"out": torch.ones(1, 2, 3, 4)}
    if not recorded:
        grads["top"] = None
        got = PASSES.gradient(made, PASSES(made), grads, of="q")
    else:
        with torch.utils._python_dispatch._disable_current_modes():
            got = operators().backward(made, forward(made), grads, {n: n == "q" for n in INPUTS})[0]
    assert torch.equal(got, torch.full_like(made.q, 2.0))


def test_operators_pass_the_checks_of_torch():
    torch.library.opcheck(operators().forward_op, pack(call()))
    torch.library.opcheck(operators().forward_op, pack(call(needs=False, softcap=2.0)))


def test_schemas_are_made_of_the_fields():
    forward_schema = str(operators().forward_op._schema)
    assert forward_schema.startswith(
        "attentropy::doubled(Tensor q, Tensor k, Tensor v, Tensor scale"
    )
    assert forward_schema.endswith("-> (Tensor out, Tensor top)")
    backward_schema = str(operators().backward_op._schema)
    assert "Tensor[] results, Tensor?[] grads, bool[] needs) -> Tensor[]" in backward_schema


def test_recorded_calls_are_one_operator():
    with FakeTensorMode():
        made = call()
        results = PASSES(made)
        results.out.sum().backward()
    assert results.out.shape == (1, 2, 3, 4)
    assert made.q.grad.shape == made.q.shape
    assert calls == []


def test_compiled_gradients():
    q, k = torch.randn(1, 2, 3, 4, requires_grad=True), torch.randn(1, 2, 5, 4)

    def loss(q):
        return PASSES(resolve(q, k, k, Options())).out.sin().sum()

    torch._dynamo.reset()
    got = torch.compile(loss, fullgraph=True, backend="aot_eager")(q)
    (g,) = torch.autograd.grad(got, q)
    torch.testing.assert_close(g, 2 * (2 * q).cos())
