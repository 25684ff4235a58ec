"""Numbers that are easily lost between kernels: gradients, ties, small sums, dtypes of what is added."""

import math

import pytest
import torch

import attentropy as at
from attentropy.core.weights import Weights

SOFTMAX = ["fused", "streaming", "reference"]


@pytest.fixture(params=SOFTMAX)
def kernel(request):
    q = torch.zeros(1, 1, 2, 16)
    if (reason := at.explain(q, q, q).lacking[request.param]) is not None:
        pytest.skip(f"{request.param} lacks {reason}")
    return request.param


@pytest.mark.parametrize("mask", [None, at.causal])
@pytest.mark.parametrize("sizes", [(5, 9), (70, 70), (9, 5)])
def test_slopes_of_alibi_have_a_gradient(kernel, mask, sizes):
    q, k = torch.randn(2, 3, sizes[0], 8), torch.randn(2, 3, sizes[1], 8)
    slopes = torch.tensor([0.5, 0.1, 0.02], requires_grad=True)
    out, stats = at.attend(q, k, k, bias=at.ALiBi(slopes), mask=mask, kernel=kernel)
    (got,) = torch.autograd.grad(out.square().sum() + stats.entropy.sum(), slopes)
    exact = slopes.detach().double().requires_grad_()
    distance = torch.arange(sizes[1]) - torch.arange(sizes[0])[:, None] - (sizes[1] - sizes[0])
    s = q.double() @ k.double().mT / 8**0.5 - exact.view(-1, 1, 1) * distance.abs()
    hidden = (distance > 0) if mask is not None else torch.zeros_like(distance, dtype=torch.bool)
    s = s.masked_fill(hidden, -math.inf).masked_fill(hidden.all(-1, keepdim=True), 0.0)
    p = s.softmax(-1).masked_fill(hidden, 0.0)
    entropy = -(p * p.clamp(min=1e-300).log()).sum()
    (want,) = torch.autograd.grad((p @ k.double()).square().sum() + entropy, exact)
    torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-3)


def test_rates_of_decay_have_a_gradient_or_are_refused():
    rate = torch.tensor([0.5, 0.9], requires_grad=True)
    given = {"weights": at.Decay(rate), "mask": at.lookback(3)}
    q = torch.randn(1, 2, 6, 8)
    (got,) = torch.autograd.grad(at.attend(q, q, q, **given).out.sum(), rate)
    window = sum(d * rate.detach() ** (d - 1) * q[:, :, : 6 - d].sum((0, 2, 3)) for d in (1, 2))
    torch.testing.assert_close(got, window)
    with pytest.raises(at.UnsupportedError, match="gradients of the rate of Decay"):
        at.attend(q, q, q, **given, kernel="streaming")
    with torch.no_grad():
        at.attend(q, q, q, **given, kernel="streaming")


@pytest.mark.parametrize("kernel", ["linear", "streaming", "reference"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shift", [-60.0, -30.0, 0.0])
def test_small_features_are_normalised_as_others_are(kernel, dtype, shift):
    q, k = ((torch.randn(1, 2, 5, 8) + shift).to(dtype) for _ in range(2))
    v = torch.randn(1, 2, 5, 8).to(dtype)
    weights = at.Kernelised("exp")
    out, stats = at.attend(q, k, v, weights=weights, mask=at.causal, kernel=kernel)
    a = (q.double().exp() @ k.double().exp().mT).tril()
    p = a / a.sum(-1, keepdim=True)
    low = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
    torch.testing.assert_close(out.double(), p @ v.double(), rtol=low, atol=low)
    torch.testing.assert_close(stats.collision.double(), p.square().sum(-1), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kernel", ["streaming", "reference"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("of", [at.Linear(), at.ReluSquared()], ids=["linear", "relu squared"])
@pytest.mark.parametrize("size", [1e-11, 1e-15, 1e-18])
def test_small_sums_are_normalised_by_l1_as_others_are(kernel, dtype, of, size):
    """Oracle: the formula in float64; sums of |f| are below 1e-19, some below 1e-70."""
    tensors = [torch.randn(1, 2, 40, 8) * x for x in (size, size, 1.0)]
    q, k, v = leaves = [x.to(dtype).requires_grad_() for x in tensors]
    out, stats = at.attend(q, k, v, weights=at.L1(of), mask=at.causal, kernel=kernel)
    exact = [x.detach().double().requires_grad_() for x in leaves]
    f = (exact[0] @ exact[1].mT / 8**0.5).tril()
    f = f if of == at.Linear() else f.relu().square()
    total = f.abs().sum(-1, keepdim=True)
    a = f / total.masked_fill(total == 0, 1.0)
    assert 0 < total.max() < 1e-19
    low = {torch.float32: 1e-5, torch.bfloat16: 2e-2}[dtype]
    torch.testing.assert_close(out.double(), a @ exact[2], rtol=low, atol=low)
    torch.testing.assert_close(stats.collision.double(), a.square().sum(-1), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(stats.mass.double(), a.abs().sum(-1), rtol=1e-5, atol=1e-6)
    got = torch.autograd.grad(out.float().square().sum() + stats.collision.sum(), leaves)
    want = (a @ exact[2]).square().sum() + a.square().sum()
    for mine, other in zip(got, torch.autograd.grad(want, exact), strict=True):
        bound = low * other.abs().max().item()
        torch.testing.assert_close(mine.double(), other, rtol=low, atol=bound)


@pytest.mark.parametrize("through", ["out", "entropy", "lse"])
def test_a_nan_gradient_stays_with_the_keys_that_its_row_sees(kernel, through):
    q, k, v = (torch.randn(1, 2, 7, 8, requires_grad=True) for _ in range(3))
    out, stats = at.attend(q, k, v, mask=at.causal, kernel=kernel)
    value = out if through == "out" else getattr(stats, through)
    grad = torch.ones_like(value)
    grad[0, 1, 3] = math.nan
    found = torch.autograd.grad(value, (q, k, v), grad, allow_unused=True)
    for x, first, last in zip(found, (3, 0, 0), (4, 4, 4), strict=True):
        if x is None:
            continue
        bad = x.isnan().any(-1)
        assert bad[0, 1, first:last].all() or (through != "out" and x is found[2])
        bad[0, 1, first:last] = False
        assert not bad.any()


@pytest.mark.parametrize("weights", [at.Linear(), at.L2(at.ReluSquared())])
@pytest.mark.parametrize("kernel", ["streaming", "reference"])
def test_so_it_does_for_weights_that_are_no_probabilities(kernel, weights):
    q, k, v = (torch.randn(1, 1, 7, 8, requires_grad=True) for _ in range(3))
    out = at.attend(q, k, v, mask=at.causal, weights=weights, kernel=kernel).out
    grad = torch.ones_like(out)
    grad[0, 0, 3, 2] = math.nan
    for x in torch.autograd.grad(out, (k, v), grad):
        assert x[0, 0, :4].isnan().any()
        assert not x[0, 0, 4:].isnan().any()


def test_a_float_mask_and_a_bias_are_added_in_float32(kernel):
    q, k = torch.zeros(1, 1, 1, 8), torch.zeros(1, 1, 2, 8)
    one = torch.tensor([[1.0, 0.0]], dtype=torch.bfloat16)
    little = torch.tensor([[2.0**-8, 0.0]], dtype=torch.bfloat16)
    both = at.attend(q, k, k, mask=one, bias=little, kernel=kernel).stats
    assert both.max_logit.item() == 1 + 2**-8
    masks = at.causal & one & little
    assert at.attend(q, k, k, mask=masks, kernel=kernel).stats.max_logit.item() == 1 + 2**-8


@pytest.mark.parametrize("above", [-40.0, -5.0, 0.0, 10.0, 16.0, 17.5, 25.0, 60.0])
def test_the_gradient_of_the_mass_of_a_sink(kernel, above):
    q, k, v = (torch.randn(1, 1, 3, 8, requires_grad=x) for x in (True, False, False))
    lse = torch.logsumexp(q.detach().double() @ k.double().mT / 8**0.5, -1)
    sink = (lse.max() + above).float().reshape(1).requires_grad_()
    mass = at.attend(q, k, v, sink=sink, kernel=kernel).stats.sink_mass
    got, d_q = torch.autograd.grad(mass.sum(), (sink, q))
    z = sink.detach().double() - lse
    want = (z.sigmoid() * (-z).sigmoid()).sum()
    assert got.item() == pytest.approx(want.item(), rel=1e-5)
    torch.testing.assert_close(mass.double(), z.sigmoid(), rtol=1e-5, atol=0.0)
    p = torch.softmax(q.detach().double() @ k.double().mT / 8**0.5, -1)
    d_lse = -(z.sigmoid() * (-z).sigmoid())[..., None] * (p @ k.double()) / 8**0.5
    torch.testing.assert_close(d_q.double(), d_lse, rtol=1e-4, atol=want.item() * 1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("queries", [3, 40])
@pytest.mark.parametrize("options", [{}, {"softcap": 20.0}], ids=["plain", "softcap"])
def test_the_gradient_of_a_scale_does_not_know_of_rounded_outputs(kernel, dtype, queries, options):
    """Oracle: the formula in float64 on the same numbers; scores have a large mean."""
    q, k, v = (torch.randn(1, 2, n, 16) + x for n, x in ((queries, 2), (40, 2), (40, 0)))
    q, k, v = leaves = [x.to(dtype).requires_grad_() for x in (q, k, v)]
    d_out = torch.randn(1, 2, queries, 16).to(dtype)
    scale = torch.tensor([0.1, 0.3], requires_grad=True)
    out = at.attend(q, k, v, scale=scale, mask=at.causal, kernel=kernel, **options).out
    got, *_ = torch.autograd.grad(out, (scale, *leaves), d_out)
    q, k, v = (x.detach().double() for x in leaves)
    each = scale.detach().double().view(1, -1, 1, 1).expand(1, 2, queries, 40).requires_grad_()
    s = q @ k.mT * each
    s = 20 * (s / 20).tanh() if options else s
    hidden = torch.ones(queries, 40).triu(41 - queries).bool()
    out = s.masked_fill(hidden, -math.inf).softmax(-1) @ v
    (want,) = torch.autograd.grad(out, each, d_out.double())
    bound = 2e-6 * want.abs().sum((0, 2, 3)).max().item()
    torch.testing.assert_close(got.double(), want.sum((0, 2, 3)), rtol=0, atol=bound)


def test_slopes_are_float64_in_float64_calls():
    q = torch.zeros(1, 3, 2, 4, dtype=torch.float64)
    stats = at.attend(q, q, q, bias=at.ALiBi()).stats
    slopes = 2.0 ** (-8 * torch.arange(1, 4, dtype=torch.float64) / 3)
    want = torch.logsumexp(torch.stack([-slopes, torch.zeros(3).double()]), 0)
    torch.testing.assert_close(stats.lse[0, :, 1], want, rtol=1e-15, atol=0.0)


def test_of_equal_keys_the_first_is_the_largest(kernel):
    for queries, keys, width in (
        (1, 266, 42),
        (1, 614, 19),
        (1, 879, 9),
        (2, 403, 112),
        (9, 77, 5),
    ):
        q = torch.randn(1, 2, queries, width)
        k = torch.randn(1, 2, 1, width).expand(1, 2, keys, width).contiguous()
        assert not at.attend(q, k, k, kernel=kernel).stats.argmax.any()
        found = at.attend(q, k, k, mask=~at.prefix(7), kernel=kernel).stats.argmax
        assert (found == 7).all()


@pytest.mark.parametrize("kernel", ["auto", "fused", "streaming", "reference", "linear"])
def test_mass_of_keys_in_inference_mode(kernel):
    given = [{}, {"mask": at.causal}, {"dropout": 0.3}, {"weights": at.Hard()}]
    given += [{"weights": at.Kernelised()}, {"weights": at.L1()}, {"score": at.Cosine()}]
    given += [{"weights": at.Entmax()}, {"weights": at.Sparsemax()}, {"weights": Sigmoid()}]
    with torch.inference_mode():
        q, bias, sink = torch.randn(1, 2, 6, 8), torch.randn(6, 6), torch.randn(2)
        for one in (*given, {"bias": bias}, {"sink": sink}, {"mask": bias}):
            if at.explain(q, q, q, **one).lacking.get(kernel) is None:
                torch.manual_seed(0)
                got = at.key_mass(q, q, kernel=kernel, **one)
                torch.manual_seed(0)
                want = at.key_mass(q, q, kernel="reference", **one)
                torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


class Sigmoid(Weights):
    def __call__(self, logits):
        return logits.sigmoid()


class Learned(Weights):
    def __init__(self, slope):
        self.slope = slope

    def __call__(self, logits):
        return (logits * self.slope).sigmoid()


class TestOwnWeights:
    @pytest.mark.parametrize("kernel", ["auto", "streaming", "reference"])
    def test_they_are_called_and_differentiated(self, kernel):
        q, k, v = (torch.randn(1, 2, 9, 8, requires_grad=True) for _ in range(3))
        out, stats = at.attend(q, k, v, weights=Sigmoid(), mask=at.causal, kernel=kernel)
        got = torch.autograd.grad(out.square().sum() + stats.collision.sum(), (q, k, v))
        exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
        a = (exact[0] @ exact[1].mT / 8**0.5).sigmoid().tril()
        torch.testing.assert_close(out.double(), a @ exact[2], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(stats.mass.double(), a.sum(-1), rtol=1e-5, atol=1e-5)
        assert stats.entropy is None
        want = torch.autograd.grad((a @ exact[2]).square().sum() + a.square().sum(), exact)
        for x, y in zip(got, want, strict=True):
            torch.testing.assert_close(x.double(), y, rtol=1e-4, atol=1e-4)

    @pytest.mark.parametrize("kernel", ["fused", "linear", "triton"])
    def test_other_kernels_refuse_them(self, kernel):
        q = torch.randn(1, 1, 4, 8)
        with pytest.raises(at.UnsupportedError, match=f"kernel='{kernel}' does not support"):
            at.attend(q, q, q, weights=Sigmoid(), kernel=kernel)

    def test_their_own_parameters_have_a_gradient_or_are_refused(self):
        q, slope = torch.randn(1, 1, 4, 8), torch.tensor(2.0, requires_grad=True)
        given = {"weights": Learned(slope)}
        (got,) = torch.autograd.grad(at.attend(q, q, q, **given).out.sum(), slope)
        assert got != 0
        with pytest.raises(at.UnsupportedError, match="what weights of your own are made of"):
            at.attend(q, q, q, **given, kernel="streaming")

    def test_what_cannot_be_called_is_refused(self):
        class Silent(Weights):
            pass

        class Louder(at.Softmax):
            def __call__(self, logits):
                return logits

        class Narrow(Weights):
            def __call__(self, logits):
                return logits.sum(-1)

        q = torch.randn(1, 1, 4, 8)
        with pytest.raises(TypeError, match=r"a subclass of Weights with a method __call__"):
            at.attend(q, q, q, weights=Silent())
        with pytest.raises(TypeError, match="not of Softmax"):
            at.attend(q, q, q, weights=Louder())
        for kernel in ("streaming", "reference"):
            with pytest.raises(ValueError, match="a map of logits to a tensor of their shape"):
                at.attend(q, q, q, weights=Narrow(), kernel=kernel)

    def test_compiled_they_are_served_by_the_reference(self):
        q = torch.randn(1, 1, 4, 8)
        torch._dynamo.reset()
        compiled = torch.compile(
            lambda q: at.attend(q, q, q, weights=Sigmoid()).out, backend="eager", fullgraph=True
        )
        torch.testing.assert_close(compiled(q), at.attend(q, q, q, weights=Sigmoid()).out)


def test_queries_of_three_dimensions_are_refused():
    k = torch.randn(3, 2, 5, 8)
    with pytest.raises(ValueError, match=r"q must be of shape \[B,H,Q,D\], got \[2, 5, 8\]"):
        at.attend(torch.randn(2, 5, 8), k, k)
