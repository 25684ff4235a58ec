import math

import pytest
import torch

from attentropy.lab.experiments.questions import weightings
from attentropy.lab.harness.results import RunResults

SMALL = weightings.WeightingsConfig(lengths=(16,), rows=32, keys=64, biases=(0.0, 2.0))


def test_the_change_of_softmax_is_that_of_noisy_logits():
    rows = weightings.measure(SMALL, weightings.NOISE, 0)
    rng = torch.Generator().manual_seed(0)
    q = torch.randn(32, 32, generator=rng)
    k, v = (torch.randn(16, 32, generator=rng) for _ in range(2))
    eps = 0.5 * torch.randn(32, 16, generator=rng)
    s = q @ k.T / math.sqrt(32)
    clean, noisy = s.softmax(-1) @ v, (s + eps).softmax(-1) @ v
    wanted = ((noisy - clean).square().mean() / clean.square().mean()).sqrt().item()
    assert rows[0]["weights"] == "softmax"
    assert rows[0]["error"] == pytest.approx(wanted, rel=1e-4)


def test_a_bias_on_keys_changes_relu_squared_and_not_softmax():
    rows = RunResults(weightings.measure(SMALL, weightings.BIAS, 0))
    plain, biased = (rows.where(weights="softmax", bias=x).mean("S") for x in (0.0, 2.0))
    assert plain == pytest.approx(biased, rel=1e-4)
    sparse = [rows.where(weights="relu squared", bias=x).mean("S") for x in (0.0, 2.0)]
    assert sparse[1] < sparse[0]


def test_the_conclusion():
    rows = [
        {**row, "condition": condition, "seed": 0}
        for condition in weightings.conditions(SMALL)
        for row in weightings.measure(SMALL, condition, 0)
    ]
    said = weightings.conclude(RunResults(rows))
    assert said[0].startswith("At 16 keys the noise changes the output by these shares")
    assert any(line.startswith("relu squared finds the key in ") for line in said)
