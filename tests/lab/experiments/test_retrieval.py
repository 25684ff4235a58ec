import numpy as np
import pytest
import torch

from attentropy.lab.experiments import retrieval
from attentropy.lab.rows import Results

CONFIG = retrieval.Config(width=16, steps=20, lengths=(16, 64), sets=16, items=2048)


def test_adaptive_temperature_is_the_published_polynomial():
    h = torch.tensor([0.0, 0.5, 0.6, 1.0, 2.0, 3.0])
    want = np.maximum(np.polyval([-0.037, 0.481, -2.3, 4.917, -1.791], h.numpy()), 1.0)
    want[:2] = 1.0
    assert torch.allclose(retrieval.adaptive(h), torch.tensor(want).float(), atol=1e-5)


def test_the_target_is_the_class_of_the_largest():
    priority, kind, target = retrieval.sets(50, 7, torch.Generator().manual_seed(0))
    for row in range(50):
        assert target[row] == kind[row, priority[row].argmax()]


def test_the_entropy_is_held():
    model = retrieval.Retriever(16, None)
    rng = torch.Generator().manual_seed(0)
    with torch.no_grad():
        k, v = model.encoded(*retrieval.sets(32, 256, rng)[:2])
        scale = retrieval.holding(model, k, v, 2.0)
        assert model.read(k, v, scale)[1].mean().item() == pytest.approx(2.0, abs=1e-3)


def test_rules_agree_where_they_should():
    results = Results(retrieval.measure(CONFIG, retrieval.PLAIN, 0))
    plain = results.mean("entropy", rule=retrieval.PLAIN, n=16)
    for rule in ("log n, test only", "HoldEntropy, test only", "n, test only"):
        assert results.mean("entropy", rule=rule, n=16) == pytest.approx(plain, abs=1e-4)
        assert results.mean("entropy", rule=rule, n=64) < results.mean(
            "entropy", rule=retrieval.PLAIN, n=64
        )


@pytest.mark.parametrize("rule", CONFIG.trained[1:])
def test_every_rule_of_training_runs(rule):
    rows = retrieval.measure(CONFIG, rule, 0)
    assert [row["n"] for row in rows if row["rule"] == rule] == [16, 64]
