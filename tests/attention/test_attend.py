"""attend(): the same numbers eager, compiled, in inference mode, without a width, on no memory."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import attentropy as at
from attentropy.attention.attend import is_empty, run, widened
from attentropy.core.resolve import Options, resolve
from tests.cases import Shape, masks, options

SHAPE = Shape()


def test_equals_scaled_dot_product_attention_by_default():
    q, k, v = (torch.randn(2, 3, 70, 32) for _ in range(3))
    out, stats = at.attend(q, k, v)
    torch.testing.assert_close(out, F.scaled_dot_product_attention(q, k, v))
    assert stats.entropy.shape == (2, 3, 70)


COMPILED = ["plain", "log length", "cosine", "additive", "bias", "relative", "softcap", "sink",
            "straight through", "relu squared", "l1", "kernelised", "decay"]  # fmt: skip


KEPT = ("plain", "sink", "kernelised")  # the others take half a minute


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n in KEPT else [pytest.mark.slow]) for n in COMPILED],
)
def test_compiles_as_one_graph(name):
    check_compiled(options(SHAPE)[name])


OTHERS = ["documents", "strided", "function"]


@pytest.mark.parametrize(
    "name",
    ["window", "padding", "float", *(pytest.param(n, marks=pytest.mark.slow) for n in OTHERS)],
)
def test_compiles_with_masks(name):
    check_compiled({"mask": masks(SHAPE)[name]})


def check_compiled(given):
    def loss(q, k, v):
        out, stats = at.attend(q, k, v, **given)
        rest = stats.collision.sum() if stats.entropy is None else stats.entropy.sum()
        return out.sin().sum() + rest

    tensors = SHAPE.tensors()
    torch._dynamo.reset()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    got = torch.autograd.grad(compiled(*tensors), tensors, allow_unused=True)
    want = torch.autograd.grad(loss(*tensors), tensors, allow_unused=True)
    for a, b in zip(got, want):
        if b is not None:
            torch.testing.assert_close(a, b)


SCALES = {
    "number": 0.3,
    "integer": 2,
    "rule": at.LogLength(2.0),
    "constant": at.Constant(0.3),
    "per head": torch.tensor([0.1, 0.2, 0.3, 0.4]),
    "held": at.HoldEntropy(8, (1.0, 2.0, 1.0, 2.0)),
    "function": lambda d, n: n.log() / d,
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n == "rule" else [pytest.mark.slow]) for n in SCALES],
)
def test_scales_compile_for_all_lengths_at_once(name):
    def loss(q):
        out, stats = at.attend(q, q, q, mask=at.causal, scale=SCALES[name])
        return out.sin().sum() + stats.entropy.sum()

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager", dynamic=True)
    for length in (9, 12, 31):
        q = torch.randn(2, 4, length, 8, requires_grad=True)
        (got,) = torch.autograd.grad(compiled(q), q)
        torch.testing.assert_close(got, torch.autograd.grad(loss(q), q)[0])
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize("scale", [math.nan, pytest.param(math.inf, marks=pytest.mark.slow)])
def test_a_scale_that_is_a_number_of_the_graph_reaches_the_output(scale):
    """Compiled, it cannot be refused; nothing is cleaned either."""
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda q, scale: at.attend(q, q, q, scale=scale).out, backend="aot_eager", dynamic=True
    )
    q = torch.randn(1, 1, 3, 8)
    torch.testing.assert_close(compiled(q, 0.5), at.attend(q, q, q, scale=0.5).out)
    assert compiled(q, scale).isnan().any()


@pytest.mark.parametrize("name", options(SHAPE))
@pytest.mark.parametrize("kernel", ["auto", "streaming"])
def test_tensors_without_a_width(name, kernel):
    given = options(SHAPE)[name]
    q, k, v = SHAPE.tensors()
    cases = [(q, k, v[..., :0])]
    if name != "additive":
        cases += [(q[..., :0], k[..., :0], v), (q[..., :0], k[..., :0], v[..., :0])]
    for tensors in cases:
        results = []
        for one in (kernel, "reference"):
            torch.manual_seed(3)
            out, stats = at.attend(*tensors, kernel=one, **given)
            grads = torch.autograd.grad(out.sum() + stats.collision.sum(), v, allow_unused=True)
            results.append((out, stats.collision, stats.entropy, *grads))
        for got, want in zip(*results, strict=True):
            torch.testing.assert_close(got, want)


def test_meta_tensors_have_shapes():
    q = torch.ones(2, 4, 5, 8, device="meta")
    out, stats = at.attend(q, q, q, mask=at.causal, scale=at.LogLength())
    assert out.is_meta
    assert out.shape == q.shape
    assert stats.entropy.shape == (2, 4, 5)


def test_numbers_of_numpy_and_rules_that_give_numbers():
    q, k, v = (torch.randn(1, 2, 8, 16) for _ in range(3))
    want = at.attend(q, k, v, scale=0.25, softcap=8.0).out
    for scale in (np.float32(0.25), lambda d, n: d**-0.5, torch.tensor(0.25)):
        assert torch.equal(at.attend(q, k, v, scale=scale, softcap=np.float32(8)).out, want)
    assert at.attend(q, k, v, dropout=np.float32(0.25)).out.shape == q.shape


def test_inference_mode():
    q, k, v = (torch.randn(1, 2, 8, 16) for _ in range(3))
    with torch.inference_mode():
        out, _ = at.attend(q, k, v, mask=at.causal)
    torch.testing.assert_close(out, at.attend(q, k, v, mask=at.causal).out)


def test_unknown_options_are_refused():
    q = torch.randn(1, 1, 2, 4)
    with pytest.raises(TypeError, match="causal"):
        at.attend(q, q, q, causal=True)


@pytest.mark.parametrize("sizes", [(0, 2, 3, 5), (1, 0, 3, 5), (1, 2, 0, 5), (1, 2, 3, 0)])
@pytest.mark.parametrize("weights", [at.Softmax(), at.Linear()])
def test_calls_without_rows_or_keys(sizes, weights):
    batch, heads, queries, keys = sizes
    q = torch.randn(batch, heads, queries, 4, requires_grad=True)
    k, v = (torch.randn(batch, max(1, heads), keys, d, requires_grad=True) for d in (4, 6))
    call = resolve(q, k, v, Options(weights=weights))
    assert is_empty(call)
    out, stats = at.attend(q, k, v, weights=weights)
    assert out.shape == (batch, heads, queries, 6)
    assert not out.any()
    assert (stats.max_logit == -math.inf).all()
    assert (stats.argmax == -1).all()
    assert (stats.entropy is None) == (not weights.probabilities)
    for x, g in zip((q, k, v), torch.autograd.grad(out.sum() + stats.collision.sum(), (q, k, v))):
        assert g.shape == x.shape
        assert not g.any()


def test_a_column_of_zeros_for_tensors_without_a_width():
    q, k, v = (torch.randn(1, 2, n, d) for n, d in ((3, 0), (5, 0), (5, 4)))
    call = widened(resolve(q, k, v, Options()))
    assert (call.q.shape, call.k.shape, call.v.shape) == ((1, 2, 3, 1), (1, 2, 5, 1), (1, 2, 5, 4))
    assert not call.q.any()
    assert call.v is v


def test_rows_of_a_resolved_call_leave_the_sink_to_others():
    q = torch.randn(1, 2, 3, 4)
    call = resolve(q, q, q, Options(sink=torch.zeros(2)))
    rows = run(call, "auto")
    torch.testing.assert_close(rows.out, at.attend(q, q, q).out)
    assert rows.log_l is not None
