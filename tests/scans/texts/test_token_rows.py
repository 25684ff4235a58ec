import pytest
import torch

from attentropy.models.watch import Watch
from attentropy.scans.texts import token_rows
from attentropy.scans.texts.token_rows import ROW_STATISTICS, LookRecorder, RowRecorder
from tests.scans.small_llama import llama

N = 37
EAGER = {
    "atol": 1e-5,
    "rtol": 1e-5,
}  # its softmax is float32 whatever the model, of logits up to 60


@pytest.fixture(scope="module")
def ids():
    return torch.randint(97, (N,), generator=torch.Generator().manual_seed(3))


def windowed():
    """The same layers in a model whose queries see 8 keys."""
    from transformers import MistralConfig, MistralForCausalLM

    torch.manual_seed(0)
    known = llama()
    config = MistralConfig(**{**known.config.to_dict(), "sliding_window": 8, "head_dim": 8})
    config._attn_implementation = "eager"
    model = MistralForCausalLM(config).eval()
    model.load_state_dict(known.state_dict())
    return model


def both_ways():
    """The same layers in a model whose queries see all keys."""
    model = llama()
    for layer in model.model.layers:
        layer.self_attn.is_causal = False
    model.model.config.is_causal = False
    return model


@pytest.fixture(scope="module", params=[llama, windowed, both_ways])
def made(request):
    return request.param


@pytest.fixture(scope="module")
def maps(ids, made):
    """Weights [L,H,N,N] of eager attention."""
    with torch.no_grad():
        found = made().double()(ids[None], output_attentions=True).attentions
    found = torch.stack(found)[:, 0]
    seen = {"llama": N * (N + 1) // 2, "windowed": 8 * N - 28, "both_ways": N * N}[made.__name__]
    assert int((found[0, 0] > 0).sum()) == seen
    return found


def recorded(recorder, ids, made=llama):
    watch = Watch(made().double())
    watch.recorder = recorder
    with torch.no_grad(), watch:
        watch.model(ids[None])
    return recorder


PLACES = [f"model.layers.{i}.self_attn" for i in range(2)]


@pytest.fixture(params=[1 << 22, 6 * N * 5])
def few_rows(request, monkeypatch):
    """All rows at once, and five at a time, which does not divide N."""
    monkeypatch.setattr(token_rows, "ELEMENTS", request.param)


def test_statistics_are_those_of_every_weight(ids, made, maps, few_rows):
    rows = recorded(RowRecorder(), ids, made).rows
    assert list(rows) == PLACES
    place = torch.arange(N, dtype=torch.float64)
    logs = maps.clamp(min=1e-300).log()
    entropy = -(maps * logs).sum(-1)
    expected = {
        "entropy": entropy,
        "varentropy": (maps * (logs + entropy[..., None]).square()).sum(-1),
        "distance": (maps * (place[:, None] - place).abs()).sum(-1),
        "sink_mass": maps[..., 0],
        "received": maps.sum(-2),
        "top_probability": maps.amax(-1),
    }
    assert set(expected) == set(ROW_STATISTICS)
    for layer, name in enumerate(PLACES):
        for key, value in expected.items():
            torch.testing.assert_close(rows[name][key].double(), value[layer], **EAGER)


def test_largest_weights_in_both_directions(ids, made, maps, few_rows):
    looks = recorded(LookRecorder({PLACES[1]: (4, 1)}, most=6), ids, made).looks
    assert list(looks) == PLACES[1:]
    found = looks[PLACES[1]]
    assert found.heads == (4, 1)
    for at, head in enumerate(found.heads):
        for weights, values, index, rest in (
            (maps[1, head], found.weights[at], found.keys[at], found.rest[at]),
            (maps[1, head].T, found.reader_weights[at], found.readers[at], found.reader_rest[at]),
        ):
            largest = weights.sort(-1, descending=True).values[:, :6]
            torch.testing.assert_close(values.double(), largest, **EAGER)
            own = weights.gather(-1, index.clamp(min=0)).masked_fill(index < 0, 0.0)
            torch.testing.assert_close(own, largest, **EAGER)
            total = weights.sum(-1) - largest.sum(-1)
            torch.testing.assert_close(rest.double(), total, **EAGER)


def test_hidden_keys_are_no_keys(ids):
    found = recorded(LookRecorder({PLACES[0]: (0,)}, most=6), ids).looks[PLACES[0]]
    assert found.keys[0, 2].ge(0).sum() == 3
    assert found.keys[0, 2, 3:].eq(-1).all()
    assert found.readers[0, N - 1].ge(0).sum() == 1
    assert found.readers[0, N - 1, 0] == N - 1
