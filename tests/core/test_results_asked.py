import pytest
import torch

import attentropy as at
from attentropy.core.errors import ArgumentError, ArgumentTypeError
from attentropy.core.results import COMPUTED, NotAskedError, asked

KERNELS = ("reference", "streaming", "fused", "triton")


def tensors():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(1, 2, 9, 8, generator=generator) for _ in range(3)]


def test_words_and_names():
    assert asked("all") == COMPUTED
    assert asked("none") == frozenset()
    assert asked("entropy") == {"entropy"}
    assert asked(["perplexity", "visible"]) == {"entropy"}
    assert asked({"gradient_flow"}) == {"entropy", "collision"}
    assert asked(()) == frozenset()


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (
            "some",
            ArgumentError,
            "stats must be 'none', 'entropy', 'all' or a set of names, got 'some'",
        ),
        (
            {"entropi"},
            ArgumentError,
            r"stats must be names out of \['argmax', .*, got also \['entropi'\]",
        ),
        (3, ArgumentTypeError, "stats must be 'none', 'entropy', 'all' or a set of names, got 3"),
        (None, ArgumentTypeError, "or a set of names, got None"),
    ],
)
def test_what_is_no_statistic_is_refused(given, error, message):
    with pytest.raises(error, match=message):
        at.attend(*tensors(), stats=given)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    ("given", "there", "absent"),
    [
        ("none", {"visible"}, {"entropy", "lse", "argmax", "perplexity", "density"}),
        (
            "entropy",
            {"entropy", "perplexity", "deficit", "visible"},
            {"lse", "collision", "argmax"},
        ),
        ({"argmax", "top_probability"}, {"argmax", "max_logit", "lse"}, {"entropy", "varentropy"}),
    ],
)
def test_every_kernel_gives_what_is_asked_for_and_names_the_rest(kernel, given, there, absent):
    whole = at.attend(*tensors(), mask=at.causal, kernel="reference")
    out, stats = at.attend(*tensors(), mask=at.causal, kernel=kernel, stats=given)
    torch.testing.assert_close(out, whole.out.to(out.dtype), atol=1e-5, rtol=1e-5)
    for name in there:
        want = getattr(whole.stats, name)
        got = getattr(stats, name)
        torch.testing.assert_close(got, want.to(got.dtype), atol=1e-5, rtol=1e-5)
    for name in absent:
        with pytest.raises(
            NotAskedError, match=r"stats= did not ask for it; ask for it with stats="
        ):
            getattr(stats, name)
    assert not hasattr(stats, "nonsense")


@pytest.mark.parametrize("kernel", KERNELS)
def test_gradients_flow_through_what_is_asked_for(kernel):
    found = []
    for name in (kernel, "reference"):
        x = [t.clone().requires_grad_() for t in tensors()]
        out, stats = at.attend(*x, kernel=name, stats="entropy")
        found.append(torch.autograd.grad(out.sum() + stats.entropy.square().sum(), x))
    for got, want in zip(*found, strict=True):
        torch.testing.assert_close(got, want.to(got.dtype), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_sink_joins_what_is_asked_for(kernel):
    sink = torch.tensor([0.5, -1.0])
    want = at.attend(*tensors(), sink=sink, kernel="reference")
    out, stats = at.attend(*tensors(), sink=sink, kernel=kernel, stats="entropy")
    torch.testing.assert_close(out, want.out.to(out.dtype), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(
        stats.entropy, want.stats.entropy.to(out.dtype), atol=1e-5, rtol=1e-5
    )
    with pytest.raises(NotAskedError, match="stats.sink_mass was not computed"):
        _ = stats.sink_mass


def test_heads_have_what_is_asked_for():
    heads = at.attend(*tensors(), stats={"entropy"}).stats.per_head()
    assert heads.entropy is not None
    assert heads.collision is None
    assert "collision" not in heads


def test_compiled_and_recorded_calls_ask_too():
    def one(q, k, v):
        out, stats = at.attend(q, k, v, stats="entropy", kernel="streaming")
        return out + stats.entropy[..., None]

    want = one(*tensors())
    got = torch.compile(one, backend="eager", fullgraph=True)(*tensors())
    torch.testing.assert_close(got, want)


def test_a_result_survives_a_tree_map():
    stats = at.attend(*tensors(), stats={"entropy"}).stats
    doubled = torch.utils._pytree.tree_map(lambda x: 2 * x, stats)
    assert torch.equal(doubled.entropy, 2 * stats.entropy)
    with pytest.raises(NotAskedError):
        _ = doubled.lse


def test_a_watch_records_everything_whatever_a_layer_asks_for():
    class Layer(torch.nn.Module):
        def forward(self, x):
            return at.attend(x, x, x, stats="none").out

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = Layer()

        def forward(self, x):
            return self.attention(x)

    model, x = Model(), tensors()[0]
    with at.watch(model) as w:
        model(x)
    rows = w.heads()
    assert len(rows) == 2
    assert all(row.entropy > 0 and row.density > 0 for row in rows)
