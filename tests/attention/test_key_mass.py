"""key_mass(): the same by every kernel, eager, compiled and in inference mode."""

import pytest
import torch

import attentropy as at
from attentropy.attention.choice import KERNELS
from attentropy.core.resolve import Options, resolve
from tests.cases import Shape, masks, options

SHAPE = Shape()


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


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n in ("sink", "l1") else [pytest.mark.slow]) for n in MASSES],
)
def test_key_mass_compiles_as_one_graph(name):
    check_compiled_mass(SHAPE.tensors()[:2], **MASSES[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sink", "l1"])
def test_key_mass_of_the_reference_compiles(name):
    check_compiled_mass(SHAPE.tensors()[:2], kernel="reference", **MASSES[name])


@pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("name", ["log length", "sink", "bias"])
def test_key_mass_of_the_fused_kernel_compiles(name, dtype):
    given = options(SHAPE)[name]
    assert at.explain(*SHAPE.tensors(dtype), **given).kernel == "fused"
    check_compiled_mass(SHAPE.tensors(dtype)[:2], **given)


@pytest.mark.slow
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


SERVED = {
    "reference": [*options(SHAPE)],
    "streaming": [*options(SHAPE)],
    "linear": ["kernelised", "decay"],
    "fused": ["plain", "log length", "bias", "relative", "alibi", "softcap", "sink"],
    "triton": ["log length", "bias", "sink", "dropout"],
}


@pytest.mark.parametrize(("kernel", "name"), [(k, n) for k in SERVED for n in SERVED[k]])
def test_every_kernel_gives_what_keys_receive(kernel, name):
    double = kernel in ("reference", "streaming", "linear")
    shape = SHAPE if double else Shape(batch=1, heads=2, key_heads=1, queries=19, keys=21)
    given, dtype = options(shape)[name], torch.float64 if double else torch.float32
    given = {n: x.to(dtype) if isinstance(x, torch.Tensor) else x for n, x in given.items()}
    q, k, _ = (x.detach() for x in shape.tensors(dtype))
    if KERNELS[kernel].lacks(resolve(q, k, k, Options(**given))) is not None:
        pytest.skip(f"{kernel} does not run here")
    eye = torch.eye(shape.keys, dtype=dtype).expand(len(q), k.shape[1], -1, -1)
    torch.manual_seed(3)
    want = at.attend(q, k, eye, kernel="reference", **given).out.sum(2)
    torch.manual_seed(3)
    got = at.key_mass(q, k, kernel=kernel, **given)
    assert got.dtype == dtype
    close = {} if double else {"atol": 2e-5, "rtol": 1e-5}
    torch.testing.assert_close(got, want, **close)


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (5, 300), (300, 300), (7, 2), (130, 129)])
@pytest.mark.parametrize("weights", [at.Kernelised("relu"), at.Decay(0.9)], ids=["phi", "decay"])
def test_linear_kernels_at_every_alignment(queries, keys, weights):
    q, k, _ = Shape(queries=queries, keys=keys).tensors()
    given = {"weights": weights, "mask": at.causal}
    want = at.key_mass(q, k, kernel="reference", **given)
    torch.testing.assert_close(at.key_mass(q, k, kernel="linear", **given), want)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kernel", ["auto", "streaming"])
def test_masses_of_low_precision_are_float32(kernel, dtype):
    q, k = torch.randn(1, 2, 600, 16).to(dtype), torch.randn(1, 2, 600, 16).to(dtype)
    got = at.key_mass(q, k, mask=at.causal, kernel=kernel)
    want = at.key_mass(q.double(), k.double(), mask=at.causal, kernel="reference")
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), want, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kernel", ["linear", "fused"])
def test_other_kernels_in_inference_mode(kernel):
    given = {"weights": at.Kernelised()} if kernel == "linear" else {"softcap": 3.0}
    q, k = torch.randn(1, 4, 5, 8), torch.randn(1, 2, 7, 8)
    if at.explain(q, k, k, **given).lacking[kernel] is not None:
        pytest.skip(f"{kernel} does not run here")
    want = at.key_mass(q, k, kernel=kernel, **given)
    with torch.inference_mode():
        assert torch.equal(at.key_mass(q + 0, k + 0, kernel=kernel, **given), want)


def test_masses_sum_to_the_rows_that_see_something():
    q, k, _ = SHAPE.tensors()
    mask = at.causal & at.lookback(4)
    seen = at.attend(q, k, k, mask=mask).stats.visible > 0
    torch.testing.assert_close(at.key_mass(q, k, mask=mask).sum(-1), seen.sum(-1).double())


def test_nan_reaches_the_keys_of_its_row():
    q, k, _ = (x.detach().clone() for x in Shape(queries=6, keys=6).tensors())
    q[0, 0, 2] = torch.nan
    mass = at.key_mass(q, k, mask=at.causal)
    assert mass[0, 0, :3].isnan().all()
    assert mass[0, 0, 3:].isfinite().all()
    assert mass[1].isfinite().all()


def test_bad_arguments():
    q = torch.randn(1, 1, 3, 4)
    with pytest.raises(ValueError, match="option must be one of"):
        at.key_mass(q, q, causal=True)
    with pytest.raises(TypeError, match="k must be a tensor, got list"):
        at.key_mass(q, [1.0])
    with pytest.raises(at.UnsupportedError, match="kernel='linear' does not support Softmax"):
        at.key_mass(q, q, kernel="linear")
