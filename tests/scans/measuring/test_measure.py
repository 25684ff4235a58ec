"""One length measured: against dense weights computed by the eager model itself."""

import math

import pytest
import torch
from torch import nn

from attentropy.models.watch import NothingRecorded
from attentropy.scans.measuring import along, maps
from attentropy.scans.measuring.measure import measure, number, text_loss
from attentropy.scans.scan import scan
from attentropy.scans.schema import Scan, ScanError
from tests.scans.tiny import make


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=97,
        hidden_size=48,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=64,
        attn_implementation="eager",
    )
    model = LlamaForCausalLM(config).eval()
    for layer in model.model.layers:
        nn.init.normal_(layer.self_attn.q_proj.weight, std=0.5)
        nn.init.normal_(layer.self_attn.k_proj.weight, std=0.5)
    return model


@pytest.fixture(scope="module")
def pair():
    """Two batches through a llama, measured, and its own attention weights [L,B,H,n,n]."""
    model = llama()
    ids = torch.randint(97, (5, 40), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        output = model(ids, output_attentions=True, labels=ids)
    weights = torch.stack(output.attentions).double()
    model.set_attn_implementation("sdpa")
    ticks = []
    found = measure(model, ids.split(3), tick=ticks.append)
    assert ticks == [120, 80]
    return found, weights, output


def dense(weights, name):
    """The statistic per head from weights, over rows that had a choice."""
    p = weights[..., 1:, :]
    n = torch.arange(2, weights.shape[-1] + 1).double()
    h = torch.special.entr(p).sum(-1)
    c = p.square().sum(-1)
    rows = {
        "entropy": h,
        "normalized_entropy": h / n.log(),
        "perplexity": h.exp(),
        "sparsity": 1 / (n * c).sqrt(),
        "top_probability": p.amax(-1),
        "gradient_flow": 1 - c,
        "noise_robustness": 1 / ((math.e - 1) * c).sqrt(),
        "sink_mass": p[..., 0],
        "previous_share": weights.diagonal(-1, -2, -1),
        "deficit": n.log() - h,
    }
    return rows[name].mean((1, 3)).tolist()


@pytest.mark.parametrize(
    "name",
    [
        "entropy",
        "normalized_entropy",
        "perplexity",
        "sparsity",
        "top_probability",
        "gradient_flow",
        "noise_robustness",
        "sink_mass",
        "previous_share",
        "deficit",
    ],
)
def test_statistics_equal_those_of_eager_attentions(pair, name):
    found, weights, _ = pair
    for got, expected in zip(found.measure.statistics[name], dense(weights, name), strict=True):
        assert got == pytest.approx(expected, abs=1e-4)


def test_loss_is_that_of_the_model(pair):
    found, _, output = pair
    assert found.measure.loss == pytest.approx(float(output.loss), abs=1e-5)
    assert found.measure.perplexity == pytest.approx(math.exp(float(output.loss)), rel=1e-5)


def test_profile_is_the_mean_over_sequences_of_each_bin(pair):
    found, weights, _ = pair
    profile = found.measure.profile
    assert len(profile.positions) == along.BINS
    entropy = torch.special.entr(weights).sum(-1)[0].mean(0)  # [H, n]
    place = torch.arange(40) * along.BINS // 40
    for index in (1, 7, 23):
        expected = entropy[:, place == index].mean(-1).tolist()
        got = [profile.entropy[0][head][index] for head in range(6)]
        assert got == pytest.approx(expected, abs=1e-4)
        assert profile.visible[index] == pytest.approx(
            float((place == index).nonzero().double().mean()) + 1
        )


def test_layers_say_what_they_are(pair):
    layers = pair[0].layers
    assert [layer.name for layer in layers] == [f"model.layers.{i}.self_attn" for i in (0, 1)]
    assert all(layer.causal and layer.kind == "self" and layer.head_dim == 8 for layer in layers)


def test_chunks_of_the_loss_add_up():
    logits = torch.randn(2, 300, 11, generator=torch.Generator().manual_seed(0))
    ids = torch.randint(11, (2, 300), generator=torch.Generator().manual_seed(1))
    total, count = text_loss(logits, ids)
    whole = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    assert count == 598
    assert total / count == pytest.approx(float(whole), rel=1e-6)
    assert text_loss(None, ids) == (0.0, 0)


def test_numbers_are_rounded_and_not_finite_is_none():
    assert number(1 / 3) == 0.3333333
    assert number(math.inf) is number(math.nan) is None


def test_an_encoder_has_statistics_and_no_perplexity():
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
    )
    model = BertModel(config).eval()
    found = measure(model, [torch.randint(50, (2, 20))], tick=lambda tokens: None)
    assert found.measure.perplexity is None
    assert not found.layers[0].causal
    assert set(found.measure.profile.visible) == {20.0}


def test_maps_hold_the_weights_of_the_first_tokens():
    import base64
    import zlib

    model = llama()
    ids = torch.randint(97, (64,), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        weights = torch.stack(model(ids[None], output_attentions=True).attentions)[:, 0]
    model.set_attn_implementation("sdpa")
    layers = measure(model, [ids[None]], tick=lambda tokens: None).layers
    drawn = maps.draw_maps(model, ids, layers, label=str)
    assert (drawn.length, drawn.side, len(drawn.data)) == (64, 64, 12)
    assert drawn.labels[:3] == [str(int(token)) for token in ids[:3]]
    cells = torch.frombuffer(
        bytearray(zlib.decompress(base64.b64decode(drawn.data["1.4"]))), dtype=torch.uint8
    )
    got = drawn.peak["1.4"] * (cells.view(64, 64).double() / 255) ** 2
    shade = 1 / (maps.LEVELS - 1)
    assert (got.sqrt() - weights[1, 4].double().sqrt()).abs().max() < 0.51 * shade * drawn.peak[
        "1.4"
    ] ** 0.5 + 1e-3


def test_pooling_takes_means_of_blocks():
    weights = torch.arange(16.0).view(4, 4)
    assert maps.pool(weights, 2).tolist() == [[2.5, 4.5], [10.5, 12.5]]


@pytest.mark.parametrize(
    ("heads", "tokens", "side"),
    [(16, 999, 256), (32, 999, 128), (270, 999, 64), (4, 100, 64), (4, 9, None)],
)
def test_maps_shrink_with_the_number_of_heads(heads, tokens, side):
    assert maps.side_for(heads, tokens) == side


def test_scan_from_python_needs_no_more_than_model_and_tokens():
    ids = torch.randint(256, (600,), generator=torch.Generator().manual_seed(3))
    kept = []
    found = scan(make().eval(), ids, lengths=[16, 32], batch=3, keep=kept.append)
    assert isinstance(found, Scan)
    assert found.complete
    assert [one.lengths for one in kept] == [[16], [16, 32]]
    assert found.model.kind == "module"
    assert found.measures[0].tokens == 592
    assert found.slopes[0][0] is not None
    again = scan(make().eval(), ids, lengths=[16, 32], batch=3)
    assert again.measures[1].statistics == found.measures[1].statistics


def test_a_finished_scan_that_is_resumed_finds_the_same():
    ids = torch.randint(256, (600,), generator=torch.Generator().manual_seed(3))
    found = scan(make().eval(), ids, lengths=[16, 32])
    again = scan(make().eval(), ids, lengths=[16, 32], done=found)
    assert again.measures == found.measures
    assert again.findings == found.findings
    assert again.layers == found.layers


def t5():
    from transformers import T5Config, T5Model

    torch.manual_seed(0)
    config = T5Config(vocab_size=97, d_model=32, d_kv=8, d_ff=32, num_layers=1, num_heads=4)
    return T5Model(config).eval()


def test_an_encoder_and_a_decoder_read_the_same_text():
    model = t5()
    tokens = torch.randint(97, (400,), generator=torch.Generator().manual_seed(1))
    found = scan(model, tokens, lengths=[16, 32])
    assert [(layer.kind, layer.causal) for layer in found.layers] == [
        ("self", False),
        ("self", True),
        ("cross", False),
    ]
    assert found.measures[0].perplexity is None
    assert not any("--calibrate" in advice.text for advice in found.advice)
    with pytest.raises(ScanError, match="T5Model has an encoder and a decoder: scan without it"):
        scan(model, tokens, lengths=[16, 32], calibrate=True)


def test_a_model_without_attention_is_told_so():
    class Sum(nn.Module):
        def forward(self, ids):
            return ids.float().cumsum(-1)

    with pytest.raises(NothingRecorded, match="Sum ran, but made no call"):
        scan(Sum(), torch.arange(200), lengths=[16])
