import pytest
import torch

from attentropy.extensions.candidates import Setting, applied
from attentropy.extensions.extend import task_of
from attentropy.lab.experiments.contexts import far_windows
from attentropy.lab.experiments.contexts.far_windows import FarProbe, far_window, fitted, losses
from attentropy.models.rope import rotary, settings
from tests.extensions.small_models import grouped_llama, words

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


@pytest.mark.parametrize("shared", [True, False])
def test_a_fit_loses_less_and_leaves_the_model_alone(model, monkeypatch, shared):
    monkeypatch.setattr(far_windows, "STEPS", 6)
    task = task_of(model, TEXT, to=REACH)
    probe = FarProbe.of(TEXT, words, task, [0])
    base = Setting(name="YaRN", rope=settings.yarn(trained=64, to=REACH))
    before = {name: p.clone() for name, p in model.named_parameters()}
    plain = losses(model, window())
    found = fitted(base, model, probe, name="fit", waves=True, shared=shared)
    assert torch.equal(losses(model, window()), plain)
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    assert not any(p.requires_grad for p in model.parameters())
    assert len(found.rope.long_factor) == 4
    assert {len(set(factors)) == 1 for factors in found.heads.values()} == {shared}

    def total(setting):
        digits, text = probe.measured(setting, model)
        return sum(digits) / len(digits) + sum(text)

    assert total(found) < total(base) - 0.01


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
