from dataclasses import replace

import numpy as np
import pytest
import torch

from attentropy.lab.experiments import noise, scales
from attentropy.lab.harness.results import RunResults
from attentropy.lab.harness.run_plan import RunPlan
from attentropy.lab.harness.runner import run
from attentropy.lab.subjects.real_heads import Given, given_embedded
from tests.scans.tiny import Tiny

SMALL = replace(noise.EXPERIMENT.quick, trials=400, real_lengths=(32, 64))
TEXT = torch.randint(256, (400,), generator=torch.Generator().manual_seed(0))


def test_real_heads_follow_the_prediction():
    rows = noise.measure(SMALL, noise.REAL, 0)
    assert [row["n"] for row in rows if "n" in row] == [32, 64]
    for row in rows[:2]:
        assert 0.7 < row["error"] / row["theory"] < 1.3


def test_values_are_those_of_the_head():
    heads = noise.real_heads(given_embedded(), 32, texts=1, seed=0, rows=1)
    p, v = noise._visible(heads[0])
    assert p.sum() == pytest.approx(1)
    assert v.shape[0] == len(p) == 32
    assert np.abs(v.mean(0)).max() < 1e-6
    assert v.std() == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("module", [noise, scales])
def test_another_model_in_place_of_the_embedded_one(module, tmp_path):
    given = Given(Tiny(), TEXT, "tiny", longest=200)
    experiment = module.on(given)
    assert experiment.full.model == experiment.quick.model == "tiny"
    assert max(experiment.full.real_lengths) <= 200
    (here,) = (RunResults(experiment.measure(experiment.quick, module.REAL, 0)),)
    there = RunResults(module.measure(experiment.quick, module.REAL, 0))
    metric = "error" if module is noise else "entropy"
    assert here.mean(metric, n=64) != there.mean(metric, n=64)


def test_a_directory_is_of_one_model(tmp_path):
    small = replace(SMALL, laws=("gaussian 0.5",), lengths=(16, 256), trials=5, rows=1)
    given = Given(Tiny(), TEXT, "tiny")
    experiment = replace(noise.on(given), quick=replace(small, model="tiny"))
    plan = RunPlan(experiment, quick=True, seeds=1, options=("--model", "my model"))
    run(plan, tmp_path / "out")
    text = (tmp_path / "out/summary.md").read_text()
    assert "attentropy lab noise --quick --seeds 1 --model 'my model'" in text
    assert "model = tiny" in text
    assert "Real heads, with their own values" in text
    other = RunPlan(replace(noise.EXPERIMENT, quick=small), quick=True, seeds=1)
    with pytest.raises(Exception, match="model 'tiny', not 'attentropy-embedded'"):
        run(other, tmp_path / "out", resume=True)


def test_entropy_of_real_rows_under_the_plain_rule_is_that_of_the_model():
    config = replace(scales.EXPERIMENT.quick, real_lengths=(32,), reference=32)
    rows = RunResults(scales.measure(config, scales.REAL, 0))
    heads = scales.real_heads(given_embedded(), 32, texts=1, seed=0)
    want = [torch.special.entr(h.logits.double().softmax(-1)).sum(-1).mean() for h in heads]
    assert rows.mean("entropy", rule="1/sqrt d") == pytest.approx(float(sum(want) / len(want)))
    for rule in ("log n/log m/sqrt d", "HoldEntropy", "n"):
        assert rows.mean("entropy", rule=rule) == pytest.approx(
            rows.mean("entropy", rule="1/sqrt d"), abs=0.1
        )
