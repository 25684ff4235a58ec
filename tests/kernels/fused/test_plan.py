"""A plan gives, bit for bit, what the fused kernel gives for a call that is described anew."""

import pickle

import pytest
import torch

import attentropy as at
from attentropy.core.errors import UnsupportedError
from attentropy.core.resolve import Options, resolve
from attentropy.core.results import COMPUTED, NotAskedError
from attentropy.kernels import attended
from attentropy.kernels.fused import kernel as fused
from attentropy.kernels.fused import library
from attentropy.kernels.fused.plan import CallPlan
from tests.kernels.fused.cases import ISAS, serving

pytestmark = pytest.mark.skipif(not ISAS, reason="no fused kernel for this CPU")
FLOWING = ("entropy", "lse", "collision", "varentropy")
LAYOUTS = ("heads first", "tokens first", "tied")


def tensor(*shape, layout="heads first", dtype=torch.float32):
    batch, heads, rows, width = shape
    x = torch.randn(shape, dtype=dtype)
    if layout == "tokens first":
        x = torch.randn(batch, rows, heads, width, dtype=dtype).transpose(1, 2)
    if layout == "tied":  # tokens overlap in memory
        x = torch.randn(batch, heads, rows + width - 1, dtype=dtype).unfold(-1, width, 1)
    return x


def make(layout="heads first", dtype=torch.float32, queries=7, keys=37, width=16):
    q = tensor(2, 6, queries, width, layout=layout, dtype=dtype)
    k = tensor(2, 3, keys, width, layout=layout, dtype=dtype)
    return q, k, tensor(2, 3, keys, width + 4, layout=layout, dtype=dtype)


def both(tensors, options):
    """The plan's answer and that of a call described anew, each with leaves of its own."""
    call = resolve(*tensors, options)
    plan = CallPlan.of(call)
    assert plan is not None
    leaves = [x.detach().requires_grad_() for x in tensors]
    others = [x.detach().requires_grad_() for x in tensors]
    told = resolve(*others, options)
    return (leaves, plan.attend(*leaves)), (others, attended.attended(told, fused.attend(told)))


def check(tensors, options, through):
    found = []
    for leaves, (out, stats) in both(tensors, options):
        loss = 0.0
        if "out" in through:
            loss = loss + (out.float() * torch.arange(out.shape[-1])).sin().sum()
        for name in set(through) - {"out"}:
            loss = loss + getattr(stats, name).cos().sum()
        values = [out, *(stats.present()[n] for n in sorted(COMPUTED))]
        found.append((values, torch.autograd.grad(loss, leaves), stats.visible, out.stride()))
    (values, grads, visible, strides), (values2, grads2, visible2, strides2) = found
    for a, b in zip((*values, *grads, visible), (*values2, *grads2, visible2), strict=True):
        assert (a is None and b is None) or torch.equal(a, b)
    assert strides == strides2


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("queries", [1, 7, 70])
def test_equals_a_call_described_anew(isa, layout, queries):
    with serving(isa):
        tensors = make(layout, queries=queries, keys=75)
        for mask in (None, at.causal, at.causal & at.lookback(5)):
            check(tensors, Options(mask=mask), ["out"])


@pytest.mark.parametrize(
    "through", [["entropy"], ["out", "varentropy"], ["out", *FLOWING], ["lse", "collision"]]
)
def test_gradients_through_statistics(through):
    with serving(ISAS[0]):
        check(make(), Options(mask=at.causal, scale=0.3, softcap=2.0), through)


@pytest.mark.parametrize("isa", ISAS)
def test_bfloat16(isa):
    with serving(isa) as lib:
        tensors = make(dtype=torch.bfloat16)
        if not lib.bf16:
            assert CallPlan.of(resolve(*tensors, Options())) is None
            return
        check(tensors, Options(mask=at.causal), ["out", "entropy"])
        plan = CallPlan.of(resolve(*tensors, Options()))
        odd = torch.randn(tensors[0].numel() + 1).bfloat16()[1:].view(tensors[0].shape)
        assert plan.serves(*tensors)
        assert not plan.serves(odd, *tensors[1:])


def test_inputs_that_are_converted_have_no_plan():
    for tensors in (make(dtype=torch.float16), [x.mT.contiguous().mT for x in make()]):
        assert CallPlan.of(resolve(*tensors, Options())) is None


def test_holds_none_of_the_tensors():
    q, k, v = make()
    plan = CallPlan.of(resolve(q, k, v, Options()))
    held = {x.data_ptr() for x in (q, k, v)}
    assert not any(isinstance(x, torch.Tensor) and x.data_ptr() in held for x in plan.rest)


def test_another_library_is_not_served():
    tensors = make()
    plan = CallPlan.of(resolve(*tensors, Options()))
    assert plan.serves(*tensors)
    with serving(ISAS[-1]) as other:
        assert other is not plan.library
        assert not plan.serves(*tensors)
    assert library.serving is plan.library


def test_gradients_that_are_broadcast_or_swapped():
    tensors = make()
    (leaves, (out, _)), (others, (out2, _)) = both(tensors, Options())
    for grad in (torch.ones(()).expand_as(out), torch.randn_like(out.mT).mT):
        got = torch.autograd.grad(out, leaves, grad, retain_graph=True)
        want = torch.autograd.grad(out2, others, grad, retain_graph=True)
        assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_a_gradient_of_zero_adds_nothing_to_infinite_logits():
    """0 * inf: the squared surprise of a far key overflows where its statistic is not used."""
    q, k, v = torch.full((1, 1, 8, 8), 1e15), torch.randn(1, 1, 8, 8) * 1e6, torch.randn(1, 1, 8, 8)
    check((q, k, v), Options(), ["entropy"])


def test_double_backward_is_refused():
    (leaves, (out, stats)), _ = both(make(), Options())
    (grad,) = torch.autograd.grad(out.sum() + stats.entropy.sum(), leaves[0], create_graph=True)
    with pytest.raises(UnsupportedError, match="double backward is not supported by the fused"):
        torch.autograd.grad(grad.sum(), leaves[1])


def test_batched_gradients_are_refused():
    (leaves, (out, _)), _ = both(make(), Options())
    many = torch.randn(3, *out.shape)
    with pytest.raises(UnsupportedError, match="batched gradients"):
        torch.autograd.grad(out, leaves[0], many, is_grads_batched=True)


def test_statistics_are_read_later_and_can_be_written_to():
    q, k, v = make()
    plan = CallPlan.of(resolve(q, k, v, Options(stats="entropy")))
    stats = plan.attend(q, k, v).stats
    assert stats.entropy is stats.entropy
    assert stats.perplexity.shape == (2, 6, 7)
    with pytest.raises(NotAskedError, match=r"stats\.lse was not computed"):
        _ = stats.lse
    stats.visible.contiguous().zero_()
    assert plan.attend(q, k, v).stats.visible.min() == 37
    again = pickle.loads(pickle.dumps(stats))
    assert torch.equal(again.entropy, stats.entropy)
    assert "entropy=" in repr(stats)


def test_a_default_device_or_dtype_changes_nothing():
    q, k, v = make()
    plan = CallPlan.of(resolve(q, k, v, Options()))
    want = plan.attend(q, k, v)
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            got = plan.attend(q, k, v)
            assert got.out.is_cpu
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(got.out, want.out)
    assert torch.equal(got.stats.entropy, want.stats.entropy)
    assert torch.equal(got.stats.argmax, want.stats.argmax)
