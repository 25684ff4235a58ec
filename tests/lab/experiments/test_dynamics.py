import pytest

from attentropy.lab.experiments import dynamics
from attentropy.lab.harness.results import RunResults
from attentropy.training.runstore import read

CONFIG = dynamics.DynamicsConfig(length=16, width=16, heads=2, layers=2, steps=6, every=3, batch=2)


def test_entropies_come_from_the_run_store(tmp_path):
    path = tmp_path / "run.db"
    unseen = dynamics._train(CONFIG, dynamics.PLENTY, 0, path)
    run = read(path)
    assert run.steps == [0, 3, 6] == list(unseen)
    rows = RunResults(dynamics.read_off(run, unseen))
    stored = run.metrics["normalized_entropy"]
    for i, step in enumerate(run.steps):
        for layer in range(2):
            for head in range(2):
                told = rows.mean("entropy", step=step, layer=layer, head=head)
                assert told == stored[i][layer][head]
        assert rows.mean("train", step=step, kind="loss") == dict(run.losses)[step]


def test_a_fresh_model_is_near_log_n():
    rows = RunResults(dynamics.measure(CONFIG, dynamics.LITTLE, 0))
    assert 0.8 < rows.mean("entropy", step=0) <= 1
    assert rows.mean("unseen", step=6) < rows.mean("unseen", step=0)


def told(condition, *entropies, unseen):
    for step, (h, loss) in enumerate(zip(entropies, unseen, strict=True)):
        row = {"condition": condition, "seed": 0, "step": step}
        yield {**row, "kind": "loss", "unseen": loss, "train": 1.0}
        for layer in (0, 1):
            yield {**row, "kind": "head", "layer": layer, "head": 0, "entropy": h - 0.1 * layer}


@pytest.mark.parametrize(
    ("ends", "verdict"), [((0.4, 0.5), "falls more while"), ((0.5, 0.4), "falls less while")]
)
def test_overfitting_is_judged_from_the_turn_on(ends, verdict):
    little, plenty = ends
    rows = [
        *told(dynamics.PLENTY, 0.9, 0.6, plenty, unseen=(3, 2, 1)),
        *told(dynamics.LITTLE, 0.9, 0.6, little, unseen=(3, 2, 4)),
        *told(dynamics.REWARDED, 0.9, 0.6, 0.6, unseen=(3, 2, 3)),
    ]
    said = dynamics.conclude(RunResults(rows))
    assert "turns at step 1" in said[-2]
    assert verdict in said[-2]
    assert "in 2 of 2 runs (without a reward) every layer ends below" in said[-3]
    assert said[-1].endswith("the last 3.00 and 4.00: it helps here.")
