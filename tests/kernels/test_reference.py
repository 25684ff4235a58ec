"""The oracle is tested too: against torch's attention, against sums written out, by gradcheck."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

import attentropy as at
from tests.cases import Shape, options

SQUARE = Shape(queries=12, keys=12, key_heads=4)


def reference(*tensors, **given):
    return at.attend(*tensors, kernel="reference", **given)


def test_equals_scaled_dot_product_attention():
    q, k, v = SQUARE.tensors()
    torch.testing.assert_close(reference(q, k, v).out, F.scaled_dot_product_attention(q, k, v))
    causal = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(reference(q, k, v, mask=at.causal).out, causal)


@pytest.mark.parametrize("kind", ["bool", "float"])
def test_takes_the_mask_tensors_of_scaled_dot_product_attention(kind):
    q, k, v = Shape(key_heads=4).tensors()
    visible = torch.randn(2, 1, 33, 47, dtype=torch.float64) > -0.5
    visible[..., 0] = True
    mask = visible if kind == "bool" else torch.randn(33, 47).double().where(visible, -torch.inf)
    want = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    torch.testing.assert_close(reference(q, k, v, mask=mask).out, want)


def test_grouped_heads_equal_repeated_ones():
    q, k, v = Shape().tensors()
    want = reference(q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1))
    torch.testing.assert_close(reference(q, k, v).out, want.out)


def test_statistics_of_a_row_written_out():
    scores = [1.0, 2.0, -0.5]
    q = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    k = torch.tensor(scores, dtype=torch.float64).view(1, 1, 3, 1)
    _, stats = reference(q, k, k, scale=1.0)
    z = sum(math.exp(s) for s in scores)
    p = [math.exp(s) / z for s in scores]
    assert stats.lse.item() == pytest.approx(math.log(z))
    assert stats.entropy.item() == pytest.approx(-sum(x * math.log(x) for x in p))
    assert stats.collision.item() == pytest.approx(sum(x * x for x in p))
    assert stats.max_logit.item() == 2.0
    assert stats.argmax.item() == 1
    assert stats.top_probability.item() == pytest.approx(max(p))
    assert stats.mean_logit.item() == pytest.approx(sum(x * s for x, s in zip(p, scores)))


def test_a_sink_is_one_more_outcome():
    q, k, v = SQUARE.tensors()
    sink = torch.tensor([0.3, -1.0, 2.0, 0.0], dtype=torch.float64)
    s = q @ k.mT / 4
    joined = torch.cat([s, sink.view(1, 4, 1, 1).expand(2, 4, 12, 1)], -1).softmax(-1)
    out, stats = reference(q, k, v, sink=sink)
    torch.testing.assert_close(out, joined[..., :-1] @ v)
    torch.testing.assert_close(stats.entropy, -(joined * joined.log()).sum(-1))
    torch.testing.assert_close(stats.collision, joined.square().sum(-1))
    torch.testing.assert_close(stats.sink_mass, joined[..., -1])
    torch.testing.assert_close(stats.max_logit, s.amax(-1))


WRITTEN = {
    "relu squared": (at.ReluSquared(), lambda s: s.relu().square() / s.shape[-1]),
    "linear": (at.Linear(), lambda s: s),
    "l1": (at.L1(), lambda s: s / s.abs().sum(-1, keepdim=True)),
    "l2": (at.L2(), lambda s: s / s.square().sum(-1, keepdim=True).sqrt()),
    "l2 of relu squared": (
        at.L2(at.ReluSquared()),
        lambda s: F.normalize(s.relu().square(), dim=-1),
    ),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_weights_written_out(name):
    weights, rule = WRITTEN[name]
    q, k, v = SQUARE.tensors()
    a = rule(q @ k.mT / 4)
    out, stats = reference(q, k, v, weights=weights)
    torch.testing.assert_close(out, a @ v)
    torch.testing.assert_close(
        stats.sparsity, a.abs().mean(-1) / a.square().mean(-1).sqrt(), equal_nan=True
    )
    assert stats.entropy is None
    assert stats.lse is None


def test_kernelised_and_decay_written_out():
    q, k, v = SQUARE.tensors()
    a = ((F.elu(q) + 1) @ (F.elu(k) + 1).mT).tril()
    a = a / a.sum(-1, keepdim=True)
    torch.testing.assert_close(
        reference(q, k, v, weights=at.Kernelised(), mask=at.causal).out, a @ v
    )
    gap = torch.arange(12)[:, None] - torch.arange(12)
    powers = (0.7 ** gap.clamp(min=0).double()).tril()
    torch.testing.assert_close(reference(q, k, v, weights=at.Decay(0.7)).out, powers @ v)


def test_additive_written_out():
    q, k, v = SQUARE.tensors()
    wq, wk, vector = (torch.randn(*s, dtype=torch.float64) for s in ((5, 16), (5, 16), (5,)))
    pairs = torch.tanh((q @ wq.T)[:, :, :, None] + (k @ wk.T)[:, :, None])
    want = (pairs @ vector).softmax(-1) @ v
    torch.testing.assert_close(reference(q, k, v, score=at.Additive(wq, wk, vector)).out, want)


@pytest.mark.parametrize("name", [n for n in options(Shape()) if n not in ("hard", "dropout")])
def test_gradients_are_finite_with_hidden_keys(name):
    q, k, v = Shape().tensors()
    given = options(Shape())[name]
    out, stats = reference(q, k, v, **{**given, "mask": at.causal & at.lookback(3)})
    loss = out.sum() + stats.collision.sum()
    if stats.entropy is not None:
        loss = loss + stats.entropy.sum()
    grads = torch.autograd.grad(loss, (q, k, v), allow_unused=True)
    assert all(g is None or g.isfinite().all() for g in grads)


def test_gradcheck():
    shape = Shape(batch=1, heads=2, key_heads=1, queries=3, keys=4, width=3, value_width=2)

    def outputs(q, k, v):
        out, stats = reference(q, k, v, mask=at.causal)
        return out, stats.entropy, stats.lse, stats.collision

    assert torch.autograd.gradcheck(outputs, shape.tensors())


@pytest.mark.parametrize("weights", [at.Softmax(), at.Linear(), at.Hard()])
def test_argmax_of_logits_that_are_all_minus_infinity_is_a_visible_key(weights):
    q, k = torch.full((1, 1, 2, 4), torch.inf), torch.full((1, 1, 3, 4), -1.0)
    v = torch.tensor([5.0, 7.0, 9.0]).view(1, 1, 3, 1)
    mask = torch.tensor([[False, True, True], [False, False, False]])
    out, stats = reference(q, k, v, mask=mask, weights=weights)
    assert stats.max_logit.isneginf().all()
    assert stats.argmax.flatten().tolist() == [1, -1]
    if weights == at.Hard():
        assert out.flatten().tolist() == [7.0, 0.0]


@pytest.mark.parametrize("weights", [at.Softmax(), at.ReluSquared(), at.Hard(), at.Decay(0.5)])
def test_serves_vmap_and_compile(weights):
    x = torch.randn(3, 1, 2, 4, 8)

    def out(x):
        return reference(x, x, x, mask=at.causal, weights=weights).out

    want = torch.stack([out(one) for one in x])
    torch.testing.assert_close(torch.func.vmap(out)(x), want)
    torch._dynamo.reset()
    compiled = torch.compile(out, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x[0]), want[0])


HIDING = {
    "causal": at.causal,
    "table": torch.rand(2, 1, 12, 12, generator=torch.Generator().manual_seed(1)) > 0.5,
    "padding": at.padding(torch.tensor([5, 3])),
    "function": lambda b, h, q, k: (q - k) % 3 == h % 3,
}
SPOILED = ["plain", "scale tensor", "log length", "additive", "softcap", "bias", "dropout", "sink",
           "straight through", "relu squared", "l1"]  # fmt: skip


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", ["q", "k", "v"])
@pytest.mark.parametrize("hiding", HIDING)
@pytest.mark.parametrize("name", SPOILED)
@pytest.mark.parametrize("kernel", ["reference", "streaming"])
def test_gradients_of_what_does_not_see_a_nan_are_those_without_it(
    kernel, name, hiding, where, bad
):
    given = {**options(SQUARE)[name], "mask": HIDING[hiding], "kernel": kernel}
    clean = [x.detach() for x in SQUARE.tensors()]
    index = ["q", "k", "v"].index(where)
    spoiled = [x.clone() for x in clean]
    spoiled[index][0, 1, 6, 2] = bad
    seen = at.masks.as_mask(HIDING[hiding]).dense(
        at.masks.Extent(2, 4, 12, 12, torch.device("cpu"))
    )
    seen = seen.expand(2, 4, 12, 12)
    lost = torch.zeros(2, 4, 12, dtype=torch.bool)
    lost[0, 1] = torch.arange(12) == 6 if where == "q" else seen[0, 1, :, 6]
    touched = (seen & lost[..., None]).any(2)
    kept = (~lost, ~touched, ~touched, ~lost)
    for got, want, rows in zip(_gradients(spoiled, given), _gradients(clean, given), kept):
        torch.testing.assert_close(got[rows], want[rows])
        assert got[rows].isfinite().all()


def _gradients(tensors, given):
    """Of q, k, v and a bias for every pair."""
    table = torch.zeros(2, 4, 12, 12, dtype=torch.float64)
    bias = (table + given.get("bias", 0.0)).requires_grad_()
    tensors = [x.clone().requires_grad_() for x in tensors]
    torch.manual_seed(3)
    out, stats = at.attend(*tensors, **{**given, "bias": bias})
    rest = [x.sin().sum() for x in (stats.entropy, stats.collision) if x is not None]
    return torch.autograd.grad(out.sin().sum() + sum(rest), [*tensors, bias])


@pytest.mark.parametrize("given", [{}, {"mask": at.padding([3])}, {"weights": at.L1()}])
@pytest.mark.parametrize("kernel", ["auto", "reference"])
def test_fake_tensors_give_shapes(kernel, given):
    with FakeTensorMode(allow_non_fake_inputs=True):
        q = torch.empty(1, 2, 5, 8)
        out, stats = at.attend(q, q, q, kernel=kernel, **given)
        mass = at.key_mass(q, q, kernel=kernel, **given)
    assert (out.shape, stats.collision.shape, mass.shape) == (q.shape, (1, 2, 5), (1, 2, 5))
