from dataclasses import replace
from functools import partial

import pytest
import torch

from attentropy.core.errors import ArgumentError
from attentropy.extensions.fits import far_windows, temperatures
from attentropy.lab.experiments.contexts import extend
from attentropy.lab.experiments.contexts.extend import EXPERIMENT, ExtendConfig, against, conclude
from attentropy.lab.harness.results import RunResults
from attentropy.lab.harness.run_plan import RunPlan
from attentropy.lab.subjects.real_heads import Given
from tests.extensions.small_models import grouped_llama, words


@pytest.fixture(autouse=True)
def few_steps(monkeypatch):
    monkeypatch.setattr(temperatures, "STEPS", 1)
    monkeypatch.setattr(far_windows, "STEPS", 1)
    extend._fitted.cache_clear()


def test_the_embedded_model_is_measured_with_every_rule():
    config = ExtendConfig(lengths=(256,))
    rows = [row for one in extend.conditions(config) for row in EXPERIMENT.measure(config, one, 0)]
    found = {(row["rule"], row["n"]): row["loss"] for row in rows}
    assert set(found) == {(extend.HALF, 64), *((rule, 256) for rule in config.rules)}
    assert all(0.3 < loss < 3 for loss in found.values())
    assert len(set(found.values())) == len(found)


def test_a_rotary_model_is_asked_for_passkeys():
    given = Given(grouped_llama(), torch.randint(97, (9000,)), "small", encode=words)
    experiment = extend.on(given)
    config = experiment.full
    assert (config.trained, config.lengths) == (64, (96, 128))
    assert len({unit.name for unit in RunPlan(experiment).units()}) == 3 * (1 + 2 * 6 + 14)
    long = ExtendConfig(model="small", trained=700, lengths=(1400,), rules=extend.ROTARY, keys=10)
    for rule in extend.ROTARY:
        rows = experiment.measure(long, f"{rule} at 1400", 1)
        assert [row.get("depth") for row in rows] == [None, *range(10)], rule
        assert all(row["digits"] > 0 for row in rows[1:])
    assert experiment.quick.lengths == (96,)
    for rule in extend.SCREENED:
        rows = experiment.measure(long, f"{rule} in windows to 1400", 1)
        assert sum("far_digits" in row for row in rows) == 10 * extend.JUDGED_WINDOWS, rule
        assert all(row["n"] == 1400 and row["rule"] == rule for row in rows)
    without = extend.on(replace(given, encode=None)).full
    assert (without.screened, without.rules[0]) == ((), "YaRN")
    assert not set(without.rules) & set(extend.TO_RETRIEVAL)


def rows(**digits):
    """Ten keys of three texts for each rule."""
    return RunResults(
        {"seed": s, "rule": rule, "n": 96, "depth": d, "digits": x + 0.1 * s + 0.01 * d * (x > 1)}
        for rule, x in digits.items()
        for s in range(3)
        for d in range(10)
    )


def test_the_conclusion_is_that_of_the_pairs():
    found = rows(**{"YaRN": 1.5, "bands": 1.2, "worse": 1.6})
    change = against(found, "bands", "YaRN", 96, "digits")
    assert change.gain == pytest.approx(0.3)
    assert change.texts == 30
    (line,) = conclude(found)
    assert line.startswith("At 96 tokens, b")
    assert "worse" not in line
    assert conclude(rows(**{"YaRN": 1.5, "worse": 1.6}))[0] == (
        "At 96 tokens, nothing beats YaRN by two standard errors of the loss of the digits."
    )


def test_a_text_that_is_too_short_is_refused():
    short = extend.Subject(grouped_llama(), torch.arange(90))
    measure = partial(extend.measure, subject=lambda: short)
    with pytest.raises(ArgumentError, match="tokens must be at least 192, got 90"):
        measure(ExtendConfig(trained=64, lengths=(96,)), "untouched at 96", 0)
