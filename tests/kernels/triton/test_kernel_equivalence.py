"""The Triton kernels against the reference: forward and every gradient, through the interpreter.

Options and shapes are paired so that each option meets several shapes and each shape several
options, rather than all with all.
"""

import pytest
import torch

import attentropy as at
from tests.cases import Shape, _random, assert_same, masks, run

pytestmark = pytest.mark.usefixtures("poisoned")

SMALL = Shape(batch=1, heads=2, key_heads=1, queries=33, keys=47)
SHAPES = [
    SMALL,
    Shape(batch=1, heads=1, key_heads=1, queries=1, keys=1, width=1, value_width=1),
    Shape(batch=1, heads=2, key_heads=1, queries=2, keys=63, width=8),
    Shape(batch=1, heads=2, key_heads=2, queries=111, keys=63, width=5, value_width=3),
    Shape(batch=2, heads=1, key_heads=1, queries=17, keys=17, width=33, value_width=80),
]


def single(given):
    return {
        name: x.detach().float() if isinstance(x, torch.Tensor) and x.dtype.is_floating_point else x
        for name, x in given.items()
    }


def check(shape, given, *, dtype=torch.float32):
    tensors, given = shape.tensors(dtype), single(given)
    got, want = run("triton", tensors, given), run("reference", tensors, given)
    assert_same(got, want, atol=2e-6, rtol=1e-5)


@pytest.mark.interpreter
@pytest.mark.parametrize("name", masks(SMALL))
def test_masks(name):
    check(SMALL, {"mask": masks(SMALL)[name]})


@pytest.mark.interpreter
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", [pytest.param("full", marks=pytest.mark.slow), "band"])
def test_shapes(shape, name):
    check(shape, {"mask": masks(shape)[name]})


def combined(shape):
    """Options that touch different parts of the computation, together."""
    rows, keys, heads = shape.queries, shape.keys, shape.heads
    return {
        "row scale, bias of a key": {
            "scale": at.LogLength(kappa=2.0),
            "bias": _random(1, heads, 1, keys),
            "mask": at.causal,
        },
        "negative scale, sink, window": {
            "scale": -0.3,
            "sink": _random(heads),
            "mask": at.causal & at.lookback(4),
        },
        "scale tensor, relative": {
            "scale": _random(heads).abs(),
            "bias": at.Relative(_random(heads, 9)),
            "dropout": 0.4,
        },
        "softcap, bias of a pair, dropout": {
            "softcap": 0.7,
            "bias": _random(rows, keys),
            "dropout": 0.2,
        },
        "ALiBi, padding": {"bias": at.ALiBi(), "mask": at.padding(torch.tensor([keys - 1]))},
        "softcap, bias of a query, table": {
            "softcap": 20.0,
            "bias": _random(1, 1, rows, 1),
            "mask": _random(rows, keys) > 0,
        },
        "cosine, one bias": {"score": at.Cosine(), "bias": _random(1, heads, 1, 1)},
    }


@pytest.mark.parametrize("name", combined(SMALL))
def test_options(name):
    check(SMALL, combined(SMALL)[name])


@pytest.mark.interpreter
@pytest.mark.parametrize(
    ("width", "value_width", "name"),
    [(40, 144, "band"), (136, 20, "full"), (200, 72, "causal")],
)
def test_wide_heads_that_are_multiplied_in_parts(width, value_width, name):
    shape = Shape(
        batch=1, heads=1, key_heads=1, queries=18, keys=35, width=width, value_width=value_width
    )
    check(shape, {"mask": masks(shape)[name]})


@pytest.mark.interpreter
@pytest.mark.parametrize("width", [pytest.param(72, marks=pytest.mark.slow), 136])
def test_wide_heads_with_a_bias(width):
    shape = Shape(batch=1, heads=2, key_heads=1, queries=18, keys=35, width=width)
    check(shape, combined(shape)["softcap, bias of a pair, dropout"])


@pytest.mark.interpreter
@pytest.mark.parametrize("name", ["scale tensor, relative", "softcap, bias of a pair, dropout"])
def test_options_of_few_queries(name):
    shape = Shape(batch=1, heads=2, key_heads=1, queries=2, keys=63, width=8)
    check(shape, combined(shape)[name])


@pytest.mark.interpreter
@pytest.mark.parametrize("needs", [(0,), (1, 2)])
def test_any_subset_of_inputs_may_need_gradients(needs):
    tensors = [
        x.detach().requires_grad_(i in needs) for i, x in enumerate(SMALL.tensors(torch.float32))
    ]
    want = run("reference", tensors, {"mask": at.causal})
    assert_same(run("triton", tensors, {"mask": at.causal}), want, atol=2e-6, rtol=1e-5)


def test_strided_inputs_give_the_same_bits():
    q, k, v = (x.detach() for x in SMALL.tensors(torch.float32))
    apart = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
    assert not apart[0].is_contiguous()
    want = at.attend(q, k, v, mask=at.causal, kernel="triton")
    assert torch.equal(at.attend(*apart, mask=at.causal, kernel="triton").out, want.out)


def test_double_backward_is_refused():
    q, k, v = Shape(batch=1, heads=1, key_heads=1, queries=3, keys=3).tensors(torch.float32)
    out, _ = at.attend(q, k, v, kernel="triton")
    (g,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
    with pytest.raises(at.UnsupportedError, match="double backward is not supported by the triton"):
        g.sum().backward()
