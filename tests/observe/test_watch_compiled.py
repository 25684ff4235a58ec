"""torch.compile takes a watched model in one graph, and counts every call."""

import pytest
import torch

import attentropy as at
from tests.observe.test_watch import CAUSAL, Model
from tests.observe.zoo import build, inputs

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
        assert three.entropy == pytest.approx(one.entropy, rel=1e-6)
        assert three.max_logit == pytest.approx(one.max_logit, rel=1e-6)
    unwatched = compiled(x, CAUSAL)
    torch.testing.assert_close(unwatched, plain)
    assert v.heads()[0].rows == 60


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
