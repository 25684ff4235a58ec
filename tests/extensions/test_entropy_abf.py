"""The plan of Entropy-aware ABF against its published patch of Llama, written out."""

import math

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama import modeling_llama

import attentropy as at
from tests.scans.tiny import make

IDS = torch.arange(96)[None] * 11 % 97


def llama(layers=4, theta=10000.0):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=97, hidden_size=48, intermediate_size=64, num_hidden_layers=layers,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
        rope_parameters={"rope_type": "default", "rope_theta": theta}, attn_implementation="eager",
        initializer_range=0.3,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def published(monkeypatch, spared=2):
    """Queries times max(1, log_64(position + 1)) in all layers but the first, and base 500,000."""
    plain, calls = modeling_llama.apply_rotary_pos_emb, []

    def scaled(q, k, cos, sin, *rest, **options):
        q, k = plain(q, k, cos, sin, *rest, **options)
        calls.append(None)
        if len(calls) <= spared:
            return q, k
        growth = torch.arange(1.0, q.shape[2] + 1).log() / math.log(64)
        return q * growth.clamp(min=1)[None, None, :, None], k

    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", scaled)
    return llama(theta=500000.0)(IDS).logits


def test_the_plan_gives_the_logits_of_the_published_patch(monkeypatch):
    model = llama()
    plan = at.entropy_abf(model, to=96)
    handle = at.steer(model, plan)
    found = model(IDS).logits
    handle.undo()
    wanted = published(monkeypatch)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def test_what_the_plan_says():
    plan = at.entropy_abf(llama(), to=256, spared=1)
    assert plan.rope.rope_theta == 500000.0
    assert list(plan.factors) == [f"model.layers.{i}.self_attn" for i in (1, 2, 3)]
    assert plan.lengths == (64, 256)
    assert plan.factors["model.layers.1.self_attn"][3] == pytest.approx((1.0, 8 / 6))
    assert plan == at.Plan.from_json(plan.to_json())


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (llama, {"to": 64}, "to must be > 64, the trained length, got 64"),
        (llama, {"to": 128, "base": 5000.0}, "base must be >= 10000, the base of the model, got"),
        (llama, {"to": 128, "spared": -1}, "spared must be an integer >= 0, got -1"),
        (make, {"to": 4096}, "entropy_abf needs rotary positions that it can set: "),
        (lambda: 3, {"to": 128}, "model must be a torch.nn.Module, got int"),
    ],
)  # fmt: skip
def test_what_is_refused(model, options, message):
    with pytest.raises((ValueError, TypeError, at.UnsupportedError), match=message):
        at.entropy_abf(model(), **options)
