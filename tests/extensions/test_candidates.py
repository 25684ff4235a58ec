import math

import pytest
import torch

import attentropy as at
from attentropy.extensions import candidates
from attentropy.extensions.candidates import Setting, Task, applied, plan_of
from attentropy.models.rope import settings
from tests.extensions.small_models import grouped_llama
from tests.scans.tiny import make

LAYERS = {f"model.layers.{i}.self_attn": 6 for i in range(2)}
TASK = Task(model="LlamaForCausalLM", trained=64, to=96, layers=LAYERS)
IDS = torch.arange(96)[None] * 11 % 97


def steered(model, candidate):
    handle = applied(candidate, model, TASK)
    try:
        return model(IDS).logits
    finally:
        handle.undo()


def test_log_n_as_a_plan_is_the_rule():
    model = grouped_llama()
    handle = at.steer(model, scale=at.LogLengthFrom(64))
    wanted = model(IDS).logits
    handle.undo()
    found = steered(model, Setting(name="log n", log_length=True))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(found, model(IDS).logits, atol=1e-4)


def test_factors_multiply():
    heads = dict.fromkeys(LAYERS, (1.0, 1.1, 1.2, 1.3, 1.4, 1.5))
    plan = plan_of(Setting(name="x", factor=2.0, heads=heads, log_length=True), TASK)
    assert plan.lengths == (64, 96)
    growth = math.log(96) / math.log(64)
    low, high = plan.factors["model.layers.0.self_attn"][2]
    assert (low, high) == pytest.approx((2.4, 2.4 * growth))


def test_a_window_is_a_mask_and_no_plan():
    model = grouped_llama()
    handle = at.steer(model, mask=at.lookback(16) | at.prefix(2))
    wanted = model(IDS).logits
    handle.undo()
    window = Setting(name="w", window=16, sinks=2)
    torch.testing.assert_close(steered(model, window), wanted)
    assert plan_of(window, TASK) is None
    assert plan_of(Setting(name="t", truncated=True), TASK) is None


def test_every_family_is_tried():
    model = grouped_llama()
    names = {one.name for one in candidates.of_positions(model, TASK)}
    assert names == {
        "linear x1.5", "dynamic NTK x1.5", "NTK x1.5", "YaRN x1.5", "YaRN x1.5, no temperature",
        "YaRN x2.25", "llama3 x1.5", "longrope x1.5",
    }  # fmt: skip
    assert len(candidates.clipping(model, TASK)) == 1
    assert [one.sinks for one in candidates.windows(TASK)] == [1, 4]
    plain = model(IDS).logits
    for one in candidates.of_positions(model, TASK):
        assert not torch.allclose(steered(model, one), plain, atol=1e-4), one.name
    assert torch.equal(model(IDS).logits, plain)


def test_longrope_slows_slow_waves_only():
    rope = next(
        one.rope for one in candidates.of_positions(grouped_llama(), TASK) if "long" in one.name
    )
    divisors = rope.long_factor
    turns = [64 / (2 * math.pi * 10000 ** (i / 8)) for i in range(0, 8, 2)]
    assert divisors[0] == 1.0
    assert turns[0] > 4 > 1 > turns[-1]
    assert divisors[-1] == pytest.approx(1.5)
    assert rope.attention_factor == pytest.approx(math.sqrt(1 + math.log(1.5) / math.log(64)))


def test_positions_that_cannot_be_scaled_are_told():
    assert candidates.of_positions(make(), TASK) == candidates.clipping(make(), TASK) == []
    assert "Tiny has no rotary positions" in candidates.why_unscaled(make())
    model = grouped_llama()
    handle = applied(Setting(name="y", rope=settings.yarn(trained=64, to=96)), model, TASK)
    assert candidates.why_unscaled(model) == "its positions are scaled already (yarn)"
    handle.undo()


@pytest.mark.parametrize(
    ("candidate", "why"),
    [
        (Setting(name="x", truncated=True), "changes the input"),
        (Setting(name="x", window=3), "hides other keys from each row"),
        (Setting(name="x", log_length=True), "depends on the row"),
        (Setting(name="x", rope=settings.clipped(trained=64, to=96)), "positions are clipped"),
    ],
)
def test_what_no_checkpoint_can_hold_is_told(candidate, why):
    assert why in candidate.by_row
    assert Setting(name="x", factor=1.1, rope=settings.linear(trained=2, to=4)).by_row is None
