import math
import subprocess
import sys
from importlib.resources import files

import pytest
import torch
import torch.nn.functional as F

from attentropy import steer, watch
from attentropy.core.errors import ArgumentError
from attentropy.core.scales import LogLengthFrom
from attentropy.lab.embedded import (
    EmbeddedModel,
    embedded_notes,
    load_embedded,
    probe,
    sample_bytes,
)
from attentropy.lab.embedded.model import ModelShape, load_model, save_model

SMALL = ModelShape(layers=2, heads=2, width=16, rotary_heads=1)


@pytest.fixture(scope="module")
def model():
    return load_embedded()


def test_weights_are_small_and_say_where_they_come_from():
    data = files("attentropy.lab.embedded") / "data"
    assert len((data / "model.safetensors").read_bytes()) <= 3_000_000
    notes = embedded_notes()
    assert "public domain" in notes["licence"].lower()
    assert "bible-kjv-text" in notes["source"]
    assert notes["recipe"]["shape"]["trained_length"] == 128
    assert len(notes["text_sha256"]) == 64
    assert notes["licence"] in (data / "sample.LICENCE.txt").read_text()


def test_sample_is_text_of_a_useful_size():
    assert 64_000 <= len(sample_bytes()) <= 131_072
    assert sample_bytes().decode("ascii").startswith("Acts1:1 The former treatise")


@pytest.mark.parametrize("n", [1, 2, 127, 300])
def test_takes_any_length_and_is_causal(model, n):
    tokens = torch.randint(256, (2, n), generator=torch.Generator().manual_seed(n))
    logits = model(tokens)
    assert logits.shape == (2, n, 256)
    changed = tokens.clone()
    changed[:, -1] = (changed[:, -1] + 1) % 256
    torch.testing.assert_close(model(changed)[:, :-1], logits[:, :-1])
    assert (model(changed)[:, -1] - logits[:, -1]).abs().max() > 0.1


def test_refuses_tokens_without_batch(model):
    with pytest.raises(ArgumentError, match=r"tokens must be of shape \[B, n\] .* got \(5,\)"):
        model(torch.zeros(5, dtype=torch.long))


def test_every_layer_calls_attention_through_the_attribute(model):
    seen = []
    with probe.intercepted(model, lambda layer, q, k: seen.append((layer, q.shape)) or q):
        model(torch.zeros(1, 7, dtype=torch.long))
    shape = model.shape
    assert seen == [(i, (1, shape.heads, 7, shape.head_dim)) for i in range(shape.layers)]
    names = [name for name, _ in model.named_modules() if name.endswith(".attention")]
    assert names == [f"layers.{i}.attention" for i in range(shape.layers)]


def test_loads_in_eval_mode_and_float32(model):
    assert not model.training
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert model.trained_length == 128


def test_import_is_light():
    code = (
        "import sys, attentropy.lab.embedded as e; e.load_embedded(); e.sample_bytes();"
        "print({'transformers', 'scipy', 'matplotlib', 'rich'} & set(sys.modules))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"


def test_perplexity_is_the_recorded_one_and_far_below_unigram(model):
    recorded = embedded_notes()["losses"]
    measured = probe.text_loss(model, sample_bytes(), 128)
    assert measured == pytest.approx(recorded["sample_128"], abs=0.005)
    own_unigram, own_bigram = probe.count_losses(sample_bytes(), sample_bytes())
    assert math.exp(measured) < 0.2 * math.exp(own_unigram)
    assert math.exp(measured) < 0.5 * math.exp(own_bigram)


def test_save_and_load_round_trip(tmp_path):
    torch.manual_seed(0)
    model = EmbeddedModel(SMALL).eval()
    save_model(model, tmp_path / "m.safetensors", {"source": "test"})
    again = load_model(tmp_path / "m.safetensors")
    assert again.shape == SMALL
    for name, weight in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], weight.half().float())
    assert [p.name for p in tmp_path.iterdir()] == ["m.safetensors"]


def test_steering_does_what_the_rule_says_and_can_be_undone(model):
    rows = probe.windows(sample_bytes(), 512, count=4)
    plain = probe.byte_losses(model, rows)
    ruled = probe.byte_losses(model, rows, probe.steered_by(model, LogLengthFrom(128)))
    handle = steer(model, scale=LogLengthFrom(128))
    try:
        with torch.no_grad():
            logits = model(rows[:, :-1])
    finally:
        handle.undo()
    losses = F.cross_entropy(logits.transpose(1, 2), rows[:, 1:], reduction="none")
    torch.testing.assert_close(losses, ruled, rtol=1e-3, atol=1e-3)
    assert (losses - plain).abs().max() > 0.1
    assert torch.equal(probe.byte_losses(model, rows), plain)


def test_watching_finds_the_same_kinds_of_heads(model):
    with watch(model) as watched, torch.no_grad():
        model(probe.windows(sample_bytes(), 128, count=8)[:, :-1])
    found = watched.heads()
    names = [(row.layer, row.head) for row in found]
    shape = model.shape
    expected = [
        (f"layers.{i}.attention", h) for i in range(shape.layers) for h in range(shape.heads)
    ]
    assert names == expected
    assert max(row.sink_mass for row in found) > 0.3
    assert max(row.previous_share for row in found) > 0.4
