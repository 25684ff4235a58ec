import pytest
import torch

from attentropy.lab.experiments import retrieval
from attentropy.lab.harness.results import Estimate, RunResults
from attentropy.lab.subjects.retriever import Retriever, sets

CONFIG = retrieval.RetrievalConfig(
    width=16, steps=20, batch=32, lengths=(16, 64), sets=16, items=2048
)


def test_the_entropy_is_held():
    model = Retriever(16, None)
    rng = torch.Generator().manual_seed(0)
    with torch.no_grad():
        k, v = model.encoded(*sets(32, 256, rng)[:2])
        scale = retrieval.holding(model, k, v, 2.0)
        assert model.read(k, v, scale)[1].mean().item() == pytest.approx(2.0, abs=1e-3)


def measured(condition, seed=0):
    rows = retrieval.measure(CONFIG, condition, seed)
    return [{"condition": condition, "seed": seed, **row} for row in rows]


def test_rules_agree_where_they_should():
    results = RunResults(measured(retrieval.PLAIN))
    plain = results.mean("entropy", rule=retrieval.PLAIN, n=16)
    for rule in ("log n, test only", "HoldEntropy, test only", "n, test only"):
        assert results.mean("entropy", rule=rule, n=16) == pytest.approx(plain, abs=1e-4)
        assert results.mean("entropy", rule=rule, n=64) < results.mean(
            "entropy", rule=retrieval.PLAIN, n=64
        )


def test_sets_are_tested_in_pieces_that_add_up():
    model = Retriever(16, retrieval._scale(retrieval.PLAIN, CONFIG))
    scales = {retrieval.PLAIN: model.scale}
    whole = sets(12, 8, torch.Generator().manual_seed(0))
    with torch.no_grad():
        once = retrieval._answered(model, retrieval.PLAIN, scales, whole)
        parts = [
            retrieval._answered(model, retrieval.PLAIN, scales, tuple(x[i : i + 4] for x in whole))
            for i in (0, 4, 8)
        ]
    for rule, (right, entropy) in once.items():
        assert torch.equal(right, torch.cat([p[rule][0] for p in parts]))
        torch.testing.assert_close(entropy, torch.cat([p[rule][1] for p in parts]))


@pytest.mark.parametrize("rule", CONFIG.trained[1:])
def test_every_rule_of_training_runs(rule):
    rows = measured(rule)
    assert [row["n"] for row in rows if row["rule"] == rule and "n" in row] == [16, 64]
    assert rows[-1]["leak"] > 0


def test_gains_are_paired_by_seed_and_length():
    def row(seed, rule, accuracy, n=1024):
        return {"seed": seed, "rule": rule, "n": n, "accuracy": accuracy}

    rows = [row(0, retrieval.PLAIN, 30.0), row(1, retrieval.PLAIN, 50.0), row(0, "n", 60.0),
            row(1, "n", 80.0), row(0, "n", 10.0, n=16), {"seed": 0, "rule": "n", "leak": 0.1}]  # fmt: skip
    derived = retrieval.gains(RunResults(rows))
    assert derived.over("gain", rule="n", n=1024) == Estimate(30.0, 0.0, 2)
    assert not derived.over("gain", rule=retrieval.PLAIN).size
    assert not derived.over("gain", n=16).size


def test_conclusions_name_theory_and_measurement():
    rows = [row for rule in (retrieval.PLAIN, "n") for row in measured(rule)]
    said = retrieval.conclude(RunResults(rows))
    assert any("must grow like n^1" in line for line in said)
