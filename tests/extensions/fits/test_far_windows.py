import math

import msgspec
import pytest
import torch

from attentropy.extensions.candidates import Setting, applied
from attentropy.extensions.extend import task_of
from attentropy.extensions.fits import far_windows
from attentropy.extensions.fits.far_windows import FarProbe, between, far_window, fitted, losses
from attentropy.models.rope import rotary, settings
from tests.extensions.small_models import gpt_neox, grouped_llama, words

TEXT = torch.randint(97, (4000,), generator=torch.Generator().manual_seed(1))
TEXT[words("Pass")[0] == TEXT] = 0
REACH = 4096


@pytest.fixture
def model():
    return grouped_llama()


def window(seed=0):
    return far_window(TEXT, words, reach=REACH, seed=seed)


def test_positions_grow_to_the_reach_and_jump_outside_of_passkeys():
    found = window()
    steps = found.places.diff()
    assert steps.min() == 1
    assert int(found.places[-1]) == REACH - 1
    jumps = (steps > 1).nonzero().flatten() + 1
    assert len(jumps) == 10
    begin = words("Pass key")
    starts = [i for i in range(len(found.ids)) if found.ids[i : i + 2].tolist() == begin]
    assert len(starts) == 20  # ten passkeys, then ten questions
    for start, jump in zip(starts[:10], jumps.tolist(), strict=True):
        assert 0 < start - jump < 20


def test_digits_are_those_of_the_passkeys_and_plain_text_is_in_between():
    found = window(3)
    for key in range(10):
        own = found.ids[found.digits == key].tolist()
        assert len(own) == 5
        before = found.ids[: int((found.digits >= 0).nonzero()[0])].tolist()
        assert sum(before[i : i + 5] == own for i in range(len(before))) >= 3
    plain = found.plain.nonzero().flatten()
    assert len(plain) == far_windows.LAST
    assert plain.diff().unique().tolist() == [1]
    assert int(plain[-1]) < int((found.digits >= 0).nonzero()[0])
    assert not torch.equal(found.ids, window(4).ids)


def test_special_tokens_come_first():
    found, bare = far_window(TEXT, words, reach=REACH, seed=0, begin=(1, 5)), window()
    assert found.ids[:2].tolist() == [1, 5]
    assert torch.equal(found.ids[2:], bare.ids)
    assert torch.equal(found.digits[2:], bare.digits)
    assert torch.equal(found.plain[2:], bare.plain)
    assert int(found.places[-1]) == REACH - 1
    jumps, own = ((one.places.diff() > 1).nonzero().flatten() for one in (found, bare))
    assert torch.equal(jumps, own + 2)


@pytest.mark.parametrize(
    ("make", "said"),
    [(grouped_llama, None), (gpt_neox, None), (lambda: llama_of(Interleaved), "in its own way")],
)
def test_models_that_turn_otherwise_are_left_alone(monkeypatch, make, said):
    model = make()
    monkeypatch.setattr(far_windows, "ROOM", 0)
    why = far_windows.why_not(model, task_of(model, TEXT, to=REACH), words)
    assert why is None if said is None else said in why
    monkeypatch.setattr(far_windows, "ROOM", 2)
    task = task_of(model, TEXT, to=REACH)
    assert "too long for it" in far_windows.why_not(model, task, words)
    assert far_windows.why_not(model, task, None) == "there is no tokenizer"


class Interleaved(torch.nn.Module):
    """Angles of neighbouring pairs, as some models have them."""

    def __init__(self, other):
        super().__init__()
        self.config, self.attention_scaling = other.config, other.attention_scaling
        self.rope_type, self.original_inv_freq = other.rope_type, other.original_inv_freq
        self.register_buffer("inv_freq", other.inv_freq, persistent=False)

    def forward(self, x, position_ids):
        angles = (position_ids[..., None].float() * self.inv_freq).repeat_interleave(2, -1)
        return angles.cos(), angles.sin()


def llama_of(kind):
    model = grouped_llama()
    model.model.rotary_emb = kind(model.model.rotary_emb)
    return model


def test_angles_with_gradients_are_those_of_the_settings(model):
    task = task_of(model, TEXT, to=REACH)
    divisors = torch.linspace(1, 8, 4)
    rope = settings.bands(divisors.tolist(), trained=64, to=REACH, attention_factor=1.2)
    handle = applied(Setting(name="bands", rope=rope), model, task)
    wanted = losses(model, window())
    handle.undo()
    with far_windows._turning(model, divisors.log(), 1.2):
        got = losses(model, window())
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(losses(model, window()), wanted, atol=1e-2)


def test_a_forward_that_another_library_has_put_there_comes_back(model):
    module = model.model.rotary_emb
    module.forward = own = type(module).forward.__get__(module)
    with far_windows._turning(model, torch.zeros(4), 1.0):
        assert module.forward is not own
    assert vars(module)["forward"] is own
    del module.forward
    with far_windows._turning(model, torch.zeros(4), 1.0):
        pass
    assert "forward" not in vars(module)


@pytest.mark.parametrize("shared", [True, False])
def test_a_step_goes_down_the_slope_and_leaves_the_model_alone(model, monkeypatch, shared):
    """Adam's first step is the rate, against the sign of the gradient."""
    rate = 1e-5
    monkeypatch.setattr(far_windows, "STEPS", 1)
    monkeypatch.setattr(far_windows, "RATE", {"waves": rate, "heads": rate})
    model.double()
    task = task_of(model, TEXT, to=REACH)
    probe = FarProbe.of(TEXT, words, task, [0])
    base = Setting(name="YaRN", rope=settings.yarn(trained=64, to=REACH))
    before = {name: p.clone() for name, p in model.named_parameters()}
    plain = losses(model, window())
    found = fitted(base, model, probe, name="fit", waves=True, shared=shared)
    assert torch.equal(losses(model, window()), plain)
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    assert not any(p.requires_grad for p in model.parameters())
    assert all(len(set(factors)) == 1 for factors in found.heads.values()) == shared

    def total(setting):
        digits, text = probe.measured(setting, model)
        return sum(digits) / len(digits) + sum(text)

    rope = rotary.as_bands(model, base.rope)

    def shifted(wave, log):
        divisors = list(rope.long_factor)
        divisors[wave] *= math.exp(log)
        bands = msgspec.structs.replace(
            rope, short_factor=tuple(divisors), long_factor=tuple(divisors)
        )
        return total(Setting(name="shifted", rope=bands))

    slopes = [(shifted(i, rate) - shifted(i, -rate)) / (2 * rate) for i in range(4)]
    moves = zip(rope.long_factor, found.rope.long_factor, slopes, strict=True)
    steep = [(math.log(now / was), slope) for was, now, slope in moves if abs(slope) > 1]
    assert len(steep) >= 2
    for moved, slope in steep:  # others are lost in the rounding of the angles
        assert moved == pytest.approx(-math.copysign(rate, slope), rel=0.05)
    assert total(base) - total(found) > 0.9 * rate * sum(map(abs, slopes))


def test_frequencies_stay_where_only_heads_are_fitted(model, monkeypatch):
    monkeypatch.setattr(far_windows, "STEPS", 1)
    task = task_of(model, TEXT, to=128)
    base = Setting(name="YaRN", rope=settings.yarn(trained=64, to=128))
    probe = FarProbe.of(TEXT, words, task_of(model, TEXT, to=REACH), [0])
    found = fitted(base, model, probe, name="fit", waves=False, shared=False)
    again = fitted(base, model, probe, name="fit", waves=True, shared=False)
    own = rotary.as_bands(model, base.rope).long_factor
    assert found.rope.long_factor == pytest.approx(own, rel=1e-6)
    assert again.rope.long_factor != pytest.approx(own, rel=1e-3)
    assert task.trained == 64


def test_half_way_is_the_geometric_mean_of_divisors_and_temperatures(model):
    base = Setting(name="YaRN", rope=settings.yarn(trained=64, to=128))
    own = rotary.as_bands(model, base.rope)
    far = tuple(4 * factor for factor in own.long_factor)
    rope = msgspec.structs.replace(own, short_factor=far, long_factor=far)
    found = Setting(name="fit", rope=rope, heads={"a": (1.21, 0.81)})
    half = between(base, found, model, share=0.5, name="half")
    assert half.rope.long_factor == pytest.approx([2 * factor for factor in own.long_factor])
    assert half.rope.short_factor == half.rope.long_factor
    assert half.heads["a"] == pytest.approx((1.1, 0.9))
    assert between(base, found, model, share=0, name="x").rope.long_factor == own.long_factor
    assert between(base, found, model, share=1, name="fit") == found


def test_fast_frequencies_stay_where_only_slow_ones_are_fitted(model, monkeypatch):
    monkeypatch.setattr(far_windows, "STEPS", 1)
    base = Setting(name="YaRN", rope=settings.yarn(trained=64, to=128))
    probe = FarProbe.of(TEXT, words, task_of(model, TEXT, to=REACH), [0])
    found = fitted(base, model, probe, name="fit", waves=True, shared=False, slow=True)
    pairs = list(
        zip(rotary.as_bands(model, base.rope).long_factor, found.rope.long_factor, strict=True)
    )
    assert any(was == pytest.approx(1) for was, _ in pairs)
    assert any(was > 1.1 for was, _ in pairs)
    for was, now in pairs:
        assert (now == pytest.approx(was, rel=1e-6)) == (was < 1.001)
