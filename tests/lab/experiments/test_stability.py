import math

import pytest
import torch

from attentropy.attention import attend
from attentropy.lab.experiments import stability


def stats(scale):
    q = torch.eye(8)[None, None]
    return [attend(q, q, q, scale=scale).stats]


def test_alarm_and_divergence_are_dated():
    seen = stability.Watched(stability.Config())
    for step, (loss, scale) in enumerate([(3.0, 1.0), (2.5, 1.0), (2.5, 100.0), (9.0, 1.0)]):
        seen.step(step, loss, stats(scale))
    assert seen.alarm == 2
    assert seen.diverged == 3
    assert seen.top == 100


def test_a_quiet_run_has_neither():
    seen = stability.Watched(stability.Config())
    for step in range(5):
        seen.step(step, 3.0 - step / 10, stats(1.0))
    assert math.isnan(seen.alarm)
    assert math.isnan(seen.diverged)


@pytest.mark.parametrize("cure", stability.CURES)
def test_every_cure_trains(cure):
    config = stability.Config(rates=(0.01,), steps=3, length=12, batch=2, width=8, layers=1)
    (row,) = stability.measure(config, cure, 0)
    assert math.isfinite(row["loss"])
    assert not row["diverged"]
