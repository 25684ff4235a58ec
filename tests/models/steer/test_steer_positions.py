"""steer() with a plan that sets rotary positions besides scales."""

import pytest
import torch

import attentropy as at
from attentropy.core.errors import ArgumentError, UnsupportedError
from attentropy.models.rope import settings
from tests.scans.small_llama import llama
from tests.scans.tiny import make

LAYER = "model.layers.1.self_attn"
FACTORS = tuple((1.0 + 0.1 * head,) for head in range(6))
IDS = torch.arange(120)[None] * 11 % 97


def plan(*, factors, rope):
    return at.Plan(
        model="LlamaForCausalLM", reference=64, hold=None, method=None, lengths=(64,),
        factors=factors, entropy={}, spread={}, rope=rope,
    )  # fmt: skip


@pytest.fixture
def model():
    return llama().requires_grad_(False)


def test_positions_and_scales_are_applied_together_and_undone_to_the_bit(model):
    rope = settings.yarn(trained=64, to=128)
    before = {name: value.clone() for name, value in model.named_buffers()}
    plain = model(IDS).logits
    # the same by hand: a model of that config, with the factors in the rows of its queries
    config = type(model.config)(**model.config.to_dict())
    config.rope_parameters = rope.parameters({"rope_theta": 10000.0})
    other = type(model)(config).eval()
    other.load_state_dict(model.state_dict())
    for head, (factor,) in enumerate(FACTORS):
        other.model.layers[1].self_attn.q_proj.weight.data[8 * head : 8 * head + 8] *= factor
    handle = at.steer(model, plan(factors={LAYER: FACTORS}, rope=rope))
    torch.testing.assert_close(model(IDS).logits, other(IDS).logits, rtol=1e-4, atol=1e-4)
    assert handle.applied
    handle.undo()
    assert torch.equal(model(IDS).logits, plain)
    assert all(torch.equal(value, before[name]) for name, value in model.named_buffers())


def test_generation_with_a_cache_follows_the_plan(model):
    handle = at.steer(model, plan(factors={}, rope=settings.linear(trained=64, to=128)))
    whole = model(IDS).logits
    half = model(IDS[:, :100], use_cache=True)
    rest = model(IDS[:, 100:], past_key_values=half.past_key_values, use_cache=True).logits
    torch.testing.assert_close(rest, whole[:, 100:], rtol=1e-4, atol=1e-4)
    handle.undo()


def test_positions_are_those_of_the_whole_model(model):
    asked = plan(factors={}, rope=settings.yarn(trained=64, to=128))
    with pytest.raises(ArgumentError, match="layers must be left out where a plan sets positions"):
        at.steer(model, asked, layers=[LAYER])


def test_a_model_without_rotary_positions_is_refused_and_left_as_it_was():
    tiny = make()
    with pytest.raises(UnsupportedError, match="Tiny has no rotary positions that its config"):
        at.steer(tiny, plan(factors={}, rope=settings.yarn(trained=64, to=128)))
    at.steer(tiny, scale=0.1).undo()
