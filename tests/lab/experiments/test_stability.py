import math

import pytest
import torch

from attentropy.lab.experiments import stability
from attentropy.lab.harness.results import RunResults
from attentropy.training.runstore import read

SMALL = {"rates": (0.01,), "steps": 4, "warmup": 2, "length": 12, "batch": 2, "width": 8}
CONFIG = stability.StabilityConfig(**SMALL, layers=1, every=1)


def test_divergence_is_a_rise_above_the_least():
    losses = [(0, 3.0), (1, 2.5), (2, 2.5), (3, 9.0)]
    when, last = stability.diverged(losses, 0.5)
    assert when == 3
    assert last == pytest.approx(0.8 * (0.8 * (0.8 * 3 + 0.2 * 2.5) + 0.2 * 2.5) + 0.2 * 9)
    when, _ = stability.diverged([(0, 3.0), (1, 2.9)], 0.5)
    assert math.isnan(when)
    when, last = stability.diverged([(0, 3.0), (7, math.nan)], 0.5)
    assert when == 7
    assert math.isnan(last)


def test_everything_comes_from_the_run_store(tmp_path):
    path = tmp_path / "run.db"
    stability._train(CONFIG, stability.NONE, 0.01, 0, path)
    run = read(path)
    assert run.steps == [0, 1, 2, 3]
    assert [step for step, _ in run.losses] == [0, 1, 2, 3]
    assert run.layers == ["stack.blocks.0.attention"]
    row = stability.read_off(run, CONFIG, 0.01)
    largest = max(x for sample in run.metrics["max_logit"] for x in sample[0])
    assert row["max_logit"] == largest
    assert not row["diverged"]
    assert not row["alarmed"]


def test_lead_is_from_the_alarm_to_the_divergence(tmp_path):
    config = stability.StabilityConfig(steps=40, warmup=20, length=24, width=16, every=1)
    path = tmp_path / "run.db"
    stability._train(config, stability.NONE, 3.0, 0, path)
    run = read(path)
    row = stability.read_off(run, config, 3.0)
    first = min(alert.step for alert in run.alerts if alert.name in stability.LEADS)
    assert row["diverged"]
    assert row["step_alarm"] == first
    assert row["lead"] == row["step_diverged"] - first
    said = stability.conclude(RunResults([{"condition": stability.NONE, "seed": 0, **row}]))
    assert said[0].startswith("Without a cure 1 of 1 runs diverge; in 1 of them an alarm")
    assert said[-1] == "The largest rate at which no seed diverges: none without a cure."


@pytest.mark.parametrize("cure", stability.CURES)
def test_every_cure_trains(cure):
    (row,) = stability.measure(CONFIG, cure, 0)
    assert math.isfinite(row["loss"])
    assert not row["diverged"]
    assert 0 < row["least_entropy"] <= 1
    assert row["max_logit"] > -math.inf


def test_training_repeats_itself():
    torch.rand(3)
    first, second = (stability.measure(CONFIG, stability.NONE, 1) for _ in range(2))
    assert {k: v for k, v in first[0].items() if v == v} == {
        k: v for k, v in second[0].items() if v == v
    }
