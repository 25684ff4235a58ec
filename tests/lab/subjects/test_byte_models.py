import math

import pytest
import torch

import attentropy as at
from attentropy.lab.subjects.byte_models import KeyNorm, byte_model, placed, scale_of
from attentropy.nn.norms import QKNorm

SIZES = {"width": 8, "heads": 2, "layers": 1}


def test_log_n_is_trained_as_plain_at_the_trained_length():
    layer = byte_model("causal", "GAU 64 RoPE 100", "log n", **SIZES).stack.attentions[0]
    plain = byte_model("causal", "GAU RoPE", "1/sqrt d", **SIZES).stack.attentions[0]
    visible = torch.tensor([128.0, 128.0**2]).view(1, 1, 2)
    want = torch.tensor([1.0, 2.0]) * layer.key_dim**-0.5
    assert plain.scale is None
    assert (layer.key_dim, plain.key_dim) == (64, 128)
    assert torch.allclose(layer.scale(layer.key_dim, visible).flatten(), want)


def test_key_norm_leaves_queries():
    norm, x = KeyNorm(4), torch.randn(3, 4)
    q, k = norm(x, x)
    assert torch.equal(q, x)
    assert torch.equal(k, QKNorm(4).keys(x))
    assert [name for name, _ in norm.named_parameters()] == ["k.weight"]


@pytest.mark.parametrize("kind", ["RoPE", "ALiBi", "no positions", "GAU RoPE", "GAU 64 RoPE 100"])
@pytest.mark.parametrize("task", ["masked", "causal"])
def test_a_causal_model_does_not_see_what_follows(kind, task):
    model = byte_model(task, kind, "1/sqrt d", **SIZES).eval()
    tokens = torch.randint(256, (2, 12))
    changed = tokens.clone()
    changed[:, -1] = (changed[:, -1] + 1) % 256
    with torch.no_grad():
        before, after = model(tokens)[0][:, :-1], model(changed)[0][:, :-1]
    assert torch.equal(before, after) is (task == "causal")


def test_positions_of_each_kind():
    assert placed("RoPE", 2).base == 10_000
    assert placed("GAU 64 RoPE 100", 2).base == 100
    assert placed("RoPE", 2, stretch=4).scaling.factor == 4
    assert placed("RoPE", 2).scaling is None
    assert isinstance(placed("ALiBi", 2).bias(), at.ALiBi)
    assert placed("no positions", 2) is None


def test_the_mixed_rule_reads_its_weight_from_its_name():
    scale = scale_of("mixed 1", "masked", 16)
    assert float(scale(16, torch.tensor([64.0]))) == pytest.approx(0.25 + math.log(64) / 16)
    assert scale_of("KeyNorm", "masked", 16) is None
