import math

import pytest
import torch

from attentropy.extensions.candidates import Setting, Task
from attentropy.extensions.fits import temperatures
from attentropy.extensions.screening import Probe
from attentropy.lab.embedded import load_embedded, sample_bytes
from attentropy.models.rope import settings
from tests.extensions.small_models import grouped_llama

TASK = Task(model="x", trained=128, to=512, layers={f"layers.{i}.attention": 4 for i in range(5)})
TEXT = torch.tensor(list(sample_bytes()[: 6 * 512]))
LLAMA = Task(
    model="x", trained=64, to=120, layers={f"model.layers.{i}.self_attn": 6 for i in range(2)}
)


@pytest.fixture(scope="module")
def model():
    return load_embedded()


@pytest.fixture(scope="module")
def probe(model):
    return Probe.of(model, TASK, TEXT, last=64)


def test_a_temperature_goes_into_the_config_where_one_can_say_it():
    yarn = Setting(name="y", rope=settings.yarn(trained=64, to=96, attention_factor=1.2))
    found = temperatures.tempered(yarn, 1.21, "new")
    assert found.rope.attention_factor == pytest.approx(1.2 * 1.1)
    assert (found.factor, found.name) == (1.0, "new")
    linear = Setting(name="l", rope=settings.linear(trained=64, to=96), factor=2.0)
    assert temperatures.tempered(linear, 1.21, "new").factor == pytest.approx(2.42)


def test_one_temperature_lowers_the_loss_that_dilution_costs(model, probe):
    plain = Setting(name="untouched")
    fit = probe.fit
    found = temperatures.one_for_all(plain, model, fit, start=1.3)
    assert found.factor > 1.1
    before, after = (float(fit.of_candidate(one, model).mean()) for one in (plain, found))
    assert after < before - 0.1


def test_entropy_gives_the_starting_point(model, probe):
    held = temperatures.entropy_held(Setting(name="untouched"), model, probe.fit)
    assert {layer: len(heads) for layer, heads in held.heads.items()} == TASK.layers
    assert 1.0 < temperatures.typical(held.heads) < 3.0
    assert temperatures.typical({"a": (2.0, 0.5), "b": (4.0, 4.0)}) == pytest.approx(2.0)


def test_one_temperature_per_head_follows_the_gradient(model, probe, monkeypatch):
    monkeypatch.setattr(temperatures, "STEPS", 3)
    plain, told = Setting(name="untouched"), []
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    asked = [p.requires_grad for p in model.parameters()]
    found = temperatures.one_per_head(plain, model, probe.fit, name="each", tell=told.append)
    before, after = (float(probe.fit.of_candidate(one, model).mean()) for one in (plain, found))
    assert after < before
    assert len({f for heads in found.heads.values() for f in heads}) > 10
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert [p.requires_grad for p in model.parameters()] == asked
    assert told[-1] == "each, step 3 of 3"


def test_the_gradient_is_that_of_the_loss():
    model = grouped_llama()
    probe = Probe.of(model, LLAMA, torch.arange(600) * 11 % 97, last=56)
    one = Setting(name="x", rope=settings.yarn(trained=64, to=120))
    logs = {name: torch.zeros(n, requires_grad=True) for name, n in LLAMA.layers.items()}
    temperatures._loss(one, model, probe, logs).backward()
    name, step = "model.layers.0.self_attn", 1e-2

    def loss(shift):
        heads = dict.fromkeys(LLAMA.layers, (1.0,) * 6)
        heads[name] = (*heads[name][:4], math.exp(shift), 1.0)
        there = Setting(name="x", rope=one.rope, heads=heads)
        return float(probe.of_candidate(there, model).mean())

    slope = (loss(step) - loss(-step)) / (2 * step)
    assert float(logs[name].grad[4]) == pytest.approx(slope, rel=0.05, abs=1e-4)
