import pytest
import torch

from attentropy.extensions.candidates import Setting, Task
from attentropy.extensions.screening import Probe
from attentropy.lab.embedded import load_embedded
from attentropy.models.rope import settings
from tests.extensions.small_models import grouped_llama

TASK = Task(
    model="x", trained=64, to=120, layers={f"model.layers.{i}.self_attn": 6 for i in range(2)}
)
TEXT = torch.arange(900) * 11 % 97


def test_short_windows_jump_to_the_end_of_the_long_text():
    model = grouped_llama()
    probe = Probe.of(model, TASK, TEXT, last=56)
    assert probe.rows.shape == (6, 32)
    places = probe.placed(model)["position_ids"]
    assert places[0].tolist() == [*range(16), *range(104, 120)]
    losses = probe.of_candidate(Setting(name="x"), model)
    logits = model(probe.rows, **probe.placed(model)).logits.double().log_softmax(-1)
    wanted = -logits[:, 15:-1].gather(-1, probe.rows[:, 16:, None])[..., 0]
    assert float(losses.mean()) == pytest.approx(float(wanted.mean()), rel=1e-4)
    rope = settings.linear(trained=64, to=120)
    assert not torch.equal(probe.of_candidate(Setting(name="y", rope=rope), model), losses)


def test_windows_that_judge_are_not_those_that_fit():
    probe = Probe.of(grouped_llama(), TASK, TEXT, last=56)
    assert torch.equal(torch.cat([probe.fit.rows, probe.judge.rows]), probe.rows)
    inside = probe.inside()
    assert (inside.gap, inside.rows.shape) == (32, (6, 32))


def test_a_model_without_positions_reads_whole_windows():
    model = load_embedded()
    task = Task(model="x", trained=128, to=200, layers={})
    probe = Probe.of(model, task, TEXT, last=60)
    assert (probe.gap, probe.placed(model), probe.rows.shape) == (None, {}, (4, 200))
    assert probe.losses(model).shape == (4, 60)
    assert probe.inside().rows.shape == (4, 128)
