"""torch.compile takes a watched model in one graph, and counts every call."""

import pytest
import torch

import attentropy as at
from attentropy import nn
from attentropy.core.statistics import NAMES
from attentropy.models.watch import NothingRecorded
from tests.models.test_watch import CAUSAL, Model
from tests.models.zoo import build, inputs

# tracing, not code generation, is what is tested: aot_eager compiles in a second
COMPILED = {"fullgraph": True, "backend": "aot_eager"}


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def test_sdpa_in_one_graph():
    model = Model()
    x = torch.randn(2, 11, 32)
    with torch.no_grad(), at.watch(model) as w:
        plain = model(x, CAUSAL)
    compiled = torch.compile(model, **COMPILED)
    with torch.no_grad(), at.watch(model) as v:
        for _ in range(3):
            watched = compiled(x, CAUSAL)
    torch.testing.assert_close(watched, plain)
    for one, three in zip(w.heads(), v.heads(), strict=True):
        assert three.rows == 3 * one.rows
        assert three.causal is one.causal is True
        assert three.entropy == pytest.approx(one.entropy, rel=1e-6)
        assert three.max_logit == pytest.approx(one.max_logit, rel=1e-6)
    unwatched = compiled(x, CAUSAL)
    torch.testing.assert_close(unwatched, plain)
    assert v.heads()[0].rows == 60


@pytest.mark.slow
@pytest.mark.parametrize("wrapped", [False, True])
def test_transformers_in_one_graph_with_gradients(wrapped):
    pytest.importorskip("transformers")
    model = build("llama", "sdpa").train()
    batch = inputs("llama")
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    weight = model.model.layers[0].self_attn.q_proj.weight
    model(**batch, labels=labels, use_cache=False).loss.backward()
    plain, weight.grad = weight.grad, None
    compiled = torch.compile(model, **COMPILED)
    with at.watch(compiled if wrapped else model) as w:
        compiled(**batch, labels=labels, use_cache=False).loss.backward()
    torch.testing.assert_close(weight.grad, plain, atol=1e-5, rtol=1e-3)
    weight.grad = None
    assert {row.rows for row in w.heads()} == {28}
    assert w.heads()[0].layer == "model.layers.0.self_attn"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "causal"), [("llama", True), ("bert", False)])
@torch.no_grad()
def test_a_compiled_call_with_a_mask_tells_whether_it_is_causal(name, causal):
    pytest.importorskip("transformers")
    model, batch = build(name, "sdpa"), inputs(name)
    assert int(batch["attention_mask"].min()) == 0
    compiled = torch.compile(model, **COMPILED)
    with at.watch(model) as w:
        compiled(**batch)
    assert {row.causal for row in w.heads()} == {causal}


LENGTHS = (9, 12, 7, 130)


def batches(name, *, padded):
    for length in LENGTHS:
        ids = torch.randint(3, 60, (2, length))
        mask = torch.ones_like(ids)
        mask[1, : length // 3] = 0
        yield {"input_ids": ids, "attention_mask": mask} if padded else {"input_ids": ids}


def graphs():
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "padded", "dynamic"),
    [("llama", False, None), ("llama", True, True), ("bert", True, None)],
)
@torch.no_grad()
def test_lengths_share_a_graph(name, padded, dynamic):
    pytest.importorskip("transformers")
    model, given = build(name, "sdpa"), list(batches(name, padded=padded))
    compiled = torch.compile(model, dynamic=dynamic, **COMPILED)
    with at.watch(model) as w:
        plain = [model(**batch)[0] for batch in given]
    torch._dynamo.utils.counters.clear()
    with at.watch(model) as v:
        for batch, want in zip(given, plain, strict=True):
            torch.testing.assert_close(compiled(**batch)[0], want, atol=1e-4, rtol=1e-4)
    assert graphs() <= 2
    for one, other in zip(w.heads(), v.heads(), strict=True):
        assert (other.rows, other.length) == (one.rows, max(LENGTHS))
        for statistic in ("entropy", "max_logit", "sink_mass", "previous_share", "distance"):
            told = getattr(other, statistic)
            assert told == pytest.approx(getattr(one, statistic), rel=1e-4, abs=1e-5), statistic


@pytest.mark.slow
@torch.no_grad()
def test_lengths_share_a_steered_graph():
    pytest.importorskip("transformers")
    model, given = build("bert", "sdpa"), list(batches("bert", padded=False))
    compiled = torch.compile(model, **COMPILED)
    handle = at.steer(model, scale=at.LogLengthFrom(8), mask=at.lookback(20))
    torch._dynamo.utils.counters.clear()
    for batch in given:
        torch.testing.assert_close(compiled(**batch)[0], model(**batch)[0], atol=1e-4, rtol=1e-4)
    assert graphs() <= 2
    handle.undo()
    for batch in given:
        torch.testing.assert_close(compiled(**batch)[0], model(**batch)[0], atol=1e-4, rtol=1e-4)


LAYERS = {
    "plain": lambda: nn.MultiheadAttention(32, 4),
    "grouped": lambda: nn.MultiheadAttention(
        32, 4, num_kv_heads=2, mask=at.causal & at.lookback(5), scale=at.LogLength(2.0)
    ),
    "rotary": lambda: nn.MultiheadAttention(32, 4, mask=at.causal, positions=nn.RotaryPositions()),
    "alibi": lambda: nn.MultiheadAttention(32, 4, mask=at.causal, positions=at.ALiBi()),
    "relative": lambda: nn.MultiheadAttention(32, 4, positions=nn.RelativeBias(4, 5)),
    "strided": lambda: nn.MultiheadAttention(32, 4, mask=at.strided(2)),
    "cosine": lambda: nn.CosineAttention(32, 4),
    "gated": lambda: nn.GatedAttentionUnit(32, key_dim=16),
    "linear": lambda: nn.LinearAttention(32, 4),
}


@pytest.mark.parametrize(
    "name",
    ["rotary", *(pytest.param(n, marks=pytest.mark.slow) for n in LAYERS if n != "rotary")],
)
def test_layers_of_attentropy_are_recorded_as_when_not_compiled(name):
    model, x = LAYERS[name](), torch.randn(3, 11, 32)
    with at.watch(model) as w:
        plain = model(x).out
    compiled = torch.compile(model, **COMPILED)
    with at.watch(model) as v:
        for _ in range(2):
            out = compiled(x).out
        out.sum().backward()
    torch.testing.assert_close(out, plain)
    for one, two in zip(w.heads(), v.heads(), strict=True):
        assert two.rows == 2 * one.rows
        for statistic in NAMES:
            ours, theirs = getattr(two, statistic), getattr(one, statistic)
            assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-5, nan_ok=True), statistic
    assert torch.equal(compiled(x).out, out)


def test_what_a_compiled_graph_hides_is_said():
    model, x = nn.AdditiveAttention(32, 4), torch.randn(2, 5, 32)
    compiled = torch.compile(model, **COMPILED)
    why = r"nothing was recorded of the model \(additive scores in a compiled graph\)"
    with pytest.raises(NothingRecorded, match=why), at.watch(model):
        compiled(x)


class ByMethod(torch.nn.Module):
    """Attends by the method of a tensor."""

    def forward(self, x):
        return (x @ x.mT).softmax(-1) @ x


@pytest.mark.parametrize("watched", ["the wrapper", "the model"])
@pytest.mark.parametrize("ran", [False, True])
def test_a_softmax_that_a_graph_hides_is_said(watched, ran):
    model, x = ByMethod(), torch.randn(1, 2, 5, 8)
    compiled = torch.compile(model, backend="eager")
    if ran:
        compiled(x)
    why = r"ByMethod is compiled, and no attention was seen in its graph.*not see x\.softmax\(\)"
    with (
        pytest.raises(NothingRecorded, match=why),
        at.watch(model if watched == "the model" else compiled),
    ):
        compiled(x)
    with at.watch(compiled._orig_mod) as w:  # as the sentence says
        model(x)
    assert len(w.heads()) == 2


def test_a_monitor_says_so_too():
    model, x = nn.AdditiveAttention(32, 4), torch.randn(2, 5, 32)
    compiled = torch.compile(model, **COMPILED)
    with at.Monitor(model, loggers=[]) as monitor:
        compiled(x).out.sum().backward()
        with pytest.warns(RuntimeWarning, match="additive scores in a compiled graph"):
            monitor.step()


TORCH = {
    "MultiheadAttention": (lambda: torch.nn.MultiheadAttention(32, 4, batch_first=True), 3, {}),
    "one that returns no weights": (
        lambda: torch.nn.MultiheadAttention(32, 4, batch_first=True),
        3,
        {"need_weights": False},
    ),
    "TransformerEncoder": (
        lambda: torch.nn.TransformerEncoder(
            torch.nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True), 2
        ),
        1,
        {},
    ),
    "Transformer": (
        lambda: torch.nn.Transformer(32, 4, 1, 1, 64, 0.0, batch_first=True),
        2,
        {"tgt_is_causal": False},
    ),
}


def first(out):
    return out[0] if isinstance(out, tuple) else out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "gradients"),
    [
        ("TransformerEncoder", False),
        ("TransformerEncoder", True),
        ("MultiheadAttention", False),
        ("MultiheadAttention", True),
        ("one that returns no weights", True),
        ("Transformer", False),
        ("Transformer", True),
    ],
)
def test_torchs_own_modules_are_steered_and_recorded(name, gradients):
    """Their attention is one operator of torch.compile, which has no look inside."""
    make, count, options = TORCH[name]
    model, x = make().train(gradients), torch.randn(2, 7, 32)
    given = [x + i for i in range(count)]
    compiled = torch.compile(model, **COMPILED)
    with torch.set_grad_enabled(gradients):
        plain = first(compiled(*given, **options))
        handle = at.steer(model, temperature=3.0)
        try:
            want = first(model(*given, **options))
            torch.testing.assert_close(first(compiled(*given, **options)), want)
        finally:
            handle.undo()
        assert float((want - plain).detach().abs().max()) > 1e-3
        torch.testing.assert_close(first(compiled(*given, **options)), plain)
        with at.watch(model) as w:
            model(*given, **options)
        with at.watch(model) as v:
            out = first(compiled(*given, **options))
    torch.testing.assert_close(out, plain)
    assert [(r.label, r.rows, r.kind) for r in v.heads()] == [
        (r.label, r.rows, r.kind) for r in w.heads()
    ]
    assert [r.entropy for r in v.heads()] == pytest.approx([r.entropy for r in w.heads()], 1e-4)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_padded_encoder_that_is_compiled_is_steered():
    make, _, _ = TORCH["TransformerEncoder"]
    model, x = make().eval(), torch.randn(2, 7, 32)
    padding = torch.zeros(2, 7, dtype=torch.bool)
    padding[0, 5:] = True
    handle = at.steer(model, temperature=3.0)
    with torch.no_grad():
        want = model(x, src_key_padding_mask=padding)
        told = torch.compile(model, backend="aot_eager")(x, src_key_padding_mask=padding)
    handle.undo()
    torch.testing.assert_close(told[~padding], want[~padding])
