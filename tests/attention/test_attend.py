import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.autograd import forward_ad

import attentropy as at
from tests.cases import Shape, masks, options

SHAPE = Shape()


def test_equals_scaled_dot_product_attention_by_default():
    q, k, v = (torch.randn(2, 3, 70, 32) for _ in range(3))
    out, stats = at.attend(q, k, v)
    torch.testing.assert_close(out, F.scaled_dot_product_attention(q, k, v))
    assert stats.entropy.shape == (2, 3, 70)


@pytest.mark.parametrize("name", options(SHAPE))
def test_key_mass_is_what_keys_receive(name):
    given = options(SHAPE)[name]
    q, k, v = SHAPE.tensors()
    eye = torch.eye(47, dtype=torch.float64).expand(2, 2, 47, 47)
    torch.manual_seed(3)
    weights = at.attend(q, k, eye, kernel="reference", **given).out
    torch.manual_seed(3)
    got = at.key_mass(q, k, **given)
    assert got.shape == (2, 4, 47)
    torch.testing.assert_close(got, weights.sum(2))


def test_explain_says_which_and_why():
    q, k, v = SHAPE.tensors()
    found = at.explain(q, k, v, dropout=0.1)
    assert found.kernel in found.lacking
    assert found.lacking["streaming"] is None
    assert "linear: lacks Softmax weights" in str(found)


COMPILED = ["plain", "log length", "cosine", "additive", "bias", "relative", "softcap", "sink",
            "straight through", "relu squared", "l1", "kernelised", "decay"]  # fmt: skip


@pytest.mark.parametrize("name", COMPILED)
def test_compiles_as_one_graph(name):
    check_compiled(options(SHAPE)[name])


@pytest.mark.parametrize("name", ["window", "documents", "padding", "strided", "function", "float"])
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


@pytest.mark.parametrize("name", SCALES)
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


@pytest.mark.parametrize("scale", [math.nan, math.inf])
def test_a_scale_that_is_a_number_of_the_graph_reaches_the_output(scale):
    """Compiled, it cannot be refused; nothing is cleaned either."""
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda q, scale: at.attend(q, q, q, scale=scale).out, backend="aot_eager", dynamic=True
    )
    q = torch.randn(1, 1, 3, 8)
    torch.testing.assert_close(compiled(q, 0.5), at.attend(q, q, q, scale=0.5).out)
    assert compiled(q, scale).isnan().any()


def test_operators_pass_the_checks_of_torch():
    from attentropy.core.resolve import Options, resolve
    from attentropy.kernels.tiled import operators

    shape = Shape(batch=1, heads=2, key_heads=1, queries=3, keys=4, width=3, value_width=2)
    for weights, op in ((at.Softmax(), operators.softmax_op), (at.L1(), operators.sums_op)):
        call = resolve(*shape.tensors(torch.float32), Options(mask=at.causal, weights=weights))
        torch.library.opcheck(op, operators.arguments(call))


def test_inputs_of_the_module_under_autocast():
    q, k, v = (torch.randn(1, 2, 8, 16) for _ in range(3))
    with torch.autocast("cpu", torch.bfloat16):
        out, stats = at.attend(q, k, v)
        assert out.dtype == F.scaled_dot_product_attention(q, k, v).dtype == torch.bfloat16
    assert stats.entropy.dtype == torch.float32


def test_mixed_precisions_under_autocast():
    q, k, v = (torch.randn(1, 2, 8, 16) for _ in range(3))
    with torch.autocast("cpu", torch.bfloat16):
        out, _ = at.attend(q, k, v.bfloat16())
        want, _ = at.attend(q, k, v)
    assert torch.equal(out, want)
    with pytest.raises(TypeError, match="v.dtype must be that of q"):
        at.attend(q, k, v.bfloat16())


@pytest.mark.parametrize("kernel", ["auto", "reference", "streaming"])
def test_key_mass_in_inference_mode(kernel):
    q, k, bias = torch.randn(1, 4, 5, 8), torch.randn(1, 2, 7, 8), torch.randn(5, 7)
    want = at.key_mass(q, k, bias=bias, kernel=kernel)
    with torch.inference_mode():
        q, k, bias = q + 0, k + 0, bias + 0
        assert torch.equal(at.key_mass(q, k, bias=bias, kernel=kernel), want)
    assert torch.equal(at.key_mass(q, k, bias=bias, kernel=kernel), want)


MASSES = {
    **{n: options(SHAPE)[n] for n in ("log length", "sink", "dropout", "hard", "l1", "decay")},
    **{f"{n} mask": {"mask": masks(SHAPE)[n]} for n in ("documents", "padding", "function")},
}


@pytest.mark.parametrize("name", MASSES)
def test_key_mass_compiles_as_one_graph(name):
    check_compiled_mass(SHAPE.tensors()[:2], **MASSES[name])


@pytest.mark.parametrize("name", ["sink", "l1"])
def test_key_mass_of_the_reference_compiles(name):
    check_compiled_mass(SHAPE.tensors()[:2], kernel="reference", **MASSES[name])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["log length", "sink", "bias"])
def test_key_mass_of_the_fused_kernel_compiles(name, dtype):
    given = options(SHAPE)[name]
    assert at.explain(*SHAPE.tensors(dtype), **given).kernel == "fused"
    check_compiled_mass(SHAPE.tensors(dtype)[:2], **given)


@pytest.mark.parametrize(
    "sizes", [(1, 2, 0, 5, 4), (1, 2, 3, 0, 4), (0, 2, 3, 5, 4), (1, 2, 3, 5, 0)]
)
def test_key_mass_of_nothing_compiles(sizes):
    batch, heads, queries, keys, width = sizes
    q, k = torch.randn(batch, heads, queries, width), torch.randn(batch, heads, keys, width)
    check_compiled_mass((q, k), mask=at.causal)


def check_compiled_mass(tensors, **given):
    def mass(q, k):
        return at.key_mass(q, k, **given)

    torch._dynamo.reset()
    compiled = torch.compile(mass, fullgraph=True, backend="aot_eager")
    torch.manual_seed(3)
    want = mass(*tensors)
    torch.manual_seed(3)
    got = compiled(*tensors)
    assert got.requires_grad is want.requires_grad is False
    torch.testing.assert_close(got, want)


def test_key_mass_compiles_for_all_lengths_at_once():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    mass = lambda q: at.key_mass(q, q, mask=at.causal, scale=at.LogLength())  # noqa: E731
    compiled = torch.compile(mass, fullgraph=True, backend="aot_eager", dynamic=True)
    for length in (9, 12, 31):
        q = torch.randn(2, 4, length, 8)
        torch.testing.assert_close(compiled(q), mass(q))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_key_mass_of_no_heads():
    assert at.key_mass(torch.ones(2, 0, 3, 4), torch.ones(2, 2, 5, 4)).shape == (2, 0, 5)


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


def test_vmap_is_refused_with_a_way_out():
    q = torch.randn(3, 1, 2, 4, 8)
    with pytest.raises(at.UnsupportedError, match=r"torch.func transforms .* batch dimension"):
        torch.func.vmap(lambda x: at.attend(x, x, x, kernel="streaming").out)(q)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize("kernel", ["auto", "streaming"])
def test_forward_mode_derivatives_are_refused_not_lost(kernel):
    q, tangent = torch.randn(1, 1, 4, 8), torch.randn(1, 1, 4, 8)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(q, tangent)
        with pytest.raises(at.UnsupportedError, match="forward-mode .* kernel='reference'"):
            at.attend(q, dual, q, kernel=kernel)
        out = at.attend(q, dual, q, kernel="reference").out
        assert forward_ad.unpack_dual(out).tangent.abs().max() > 0
        at.attend(q, q, q, kernel=kernel)


def qkv(**changes):
    made = {
        "q": torch.randn(2, 4, 5, 8),
        "k": torch.randn(2, 2, 7, 8),
        "v": torch.randn(2, 2, 7, 3),
    }
    return {**made, **changes}


BAD = {
    "three dimensions": (qkv(q=torch.ones(4, 5, 8)), r"q must be of shape \[B,H,Q,D\], got \[4, 5, 8\]"),
    "no tensor": (qkv(k=[1.0]), "k must be a tensor, got list"),
    "integers": (qkv(q=torch.ones(2, 4, 5, 8).int()), "q.dtype must be of dtype float16"),
    "mixed dtypes": (qkv(v=torch.randn(2, 2, 7, 3).double()), r"v.dtype must be that of q, torch.float32"),
    "mixed devices": (qkv(k=torch.randn(2, 2, 7, 8, device="meta")), "k.device must be that of q, cpu, got meta"),
    "batch": (qkv(k=torch.randn(3, 2, 7, 8)), "the batch size of k must be 2, as in q, got 3"),
    "width": (qkv(k=torch.randn(2, 2, 7, 9)), "the width of k must be 8, as in q, got 9"),
    "heads": (
        qkv(k=torch.randn(2, 3, 7, 8), v=torch.randn(2, 3, 7, 3)),
        "the number of heads of k must be a divisor of the number of query heads 4, got 3",
    ),
    "heads of v": (qkv(v=torch.randn(2, 4, 7, 3)), "the number of heads of v must be 2, as in k, got 4"),
    "keys of v": (qkv(v=torch.randn(2, 2, 6, 3)), "the number of keys of v must be 7, as in k, got 6"),
    "kernel": (qkv(kernel="flash"), "kernel must be 'auto' or one of .*, got 'flash'"),
    "mask shape": (qkv(mask=torch.ones(5, 6).bool()), r"mask must be broadcastable to \[B,H,Q,K\] = \[2, 4, 5, 7\], got \[1, 1, 5, 6\]"),
    "mask dtype": (qkv(mask=torch.ones(5, 7).int()), "mask must be a Mask, or a bool or float tensor"),
    "mask kind": (qkv(mask="causal"), "mask must be a Mask, a tensor or a function"),
    "scale": (qkv(scale=float("nan")), "scale must be finite, got nan"),
    "scale kind": (qkv(scale="log"), "scale must be a scale rule, a number or a tensor, got 'log'"),
    "scale shape": (qkv(scale=torch.ones(3)), r"scale must be of shape \[H\] or broadcastable to \[B,H,Q\]"),
    "score": (qkv(score="dot"), r"score must be Dot\(\), Cosine\(\) or Additive\(...\), got 'dot'"),
    "softcap": (qkv(softcap=0.0), "softcap must be positive and finite, or None, got 0.0"),
    "sink": (qkv(sink=torch.ones(3)), r"sink must be a tensor of shape \[H\] = \[4\], got \[3\]"),
    "sink dtype": (qkv(sink=torch.ones(4) * 1j), "sink.dtype must be that of real numbers, got torch.complex64"),
    "feature of no tensor": (qkv(weights=at.Kernelised(lambda x: 3)), "Kernelised: feature must be a map to tensors, got 3"),
    "scale dtype": (qkv(scale=torch.ones(4) * 1j), "scale.dtype must be that of real numbers, got torch.complex64"),
    "scale of bools": (qkv(scale=torch.ones(4).bool()), "scale.dtype must be that of real numbers, got torch.bool"),
    "mask dimensions": (qkv(mask=torch.ones(1, 1, 1, 5, 7).bool()), r"mask must be of at most 4 dimensions, got \[1, 1, 1, 5, 7\]"),
    "dropout": (qkv(dropout=1.0), r"dropout must be a number in \[0, 1\), got 1.0"),
    "dropout below": (qkv(dropout=-0.1), r"dropout must be a number in \[0, 1\), got -0.1"),
    "bias": (qkv(bias=torch.ones(5, 7).int()), "bias.dtype must be floating point"),
    "bias kind": (qkv(bias="alibi"), "bias must be a tensor, Relative or ALiBi, got 'alibi'"),
    "bias shape": (qkv(bias=torch.ones(3, 5, 7)), "bias must be broadcastable to"),
    "layout": (qkv(q=torch.randn(2, 4, 5, 8).to_sparse()), "q.layout must be that of a dense tensor, got torch.sparse_coo"),
    "scale class": (qkv(scale=at.InverseSqrt), "scale must be a scale rule, a number or a tensor, got <class"),
    "scale of a rule": (qkv(scale=lambda d, n: None), "scale must be a rule that gives a number or a tensor, got None"),
    "scale of a rule, nan": (qkv(scale=lambda d, n: float("nan")), "scale must be finite, got nan"),
    "score class": (qkv(score=at.Dot), r"score must be Dot\(\), Cosine\(\) or Additive\(...\), got <class"),
    "softcap kind": (qkv(softcap=True), "softcap must be positive and finite, or None, got True"),
    "device of scale": (qkv(scale=torch.ones(4, device="meta")), "scale.device must be that of q, cpu, got meta"),
    "device of sink": (qkv(sink=torch.ones(4, device="meta")), "sink.device must be that of q, cpu, got meta"),
    "device of slopes": (qkv(bias=at.ALiBi(torch.ones(4, device="meta"))), "ALiBi: slopes.device must be that of q, cpu, got meta"),
    "device of table": (qkv(bias=at.Relative(torch.ones(5, device="meta"))), "Relative: table.device must be that of q, cpu, got meta"),
    "device of weight": (qkv(score=at.Additive(torch.ones(3, 8, device="meta"), torch.ones(3, 8), torch.ones(3))), "Additive: query_weight.device must be that of q, cpu"),
    "device of vector": (qkv(score=at.Additive(torch.ones(3, 8), torch.ones(3, 8), torch.ones(3, device="meta"))), "Additive: vector.device must be that of q, cpu"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments(name):
    given, message = BAD[name]
    with pytest.raises((ValueError, TypeError), match=message):
        at.attend(**given)


def test_unknown_options_are_refused():
    with pytest.raises(TypeError, match="causal"):
        at.attend(**qkv(causal=True))
    with pytest.raises(ValueError, match="option must be one of .*'weights'.*, got 'causal'"):
        at.explain(**qkv(causal=True))


@pytest.mark.parametrize("name", masks(SHAPE))
def test_visible_is_int64_whatever_the_mask(name):
    q, k, v = SHAPE.tensors()
    assert at.attend(q, k, v, mask=masks(SHAPE)[name]).stats.visible.dtype == torch.int64
    assert at.attend(q, k, v, mask=at.lookback(3)).stats.visible.dtype == torch.int64
