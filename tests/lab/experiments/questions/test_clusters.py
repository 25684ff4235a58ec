import math

import numpy as np
import pytest

from attentropy.lab.experiments.questions import clusters
from attentropy.lab.harness.results import RunResults


def test_the_deficit_of_the_mixture_is_that_of_many_scores():
    rng = np.random.default_rng(0)
    s = 1.3 * (rng.normal(size=2_000_000) + 3.0 * (rng.random(2_000_000) < 0.1))
    p = np.exp(s - s.max())
    p /= p.sum()
    entropy = -(p * np.log(p)).sum()
    found = clusters.deficit(1.3, 0.1, 3.0)
    assert math.log(len(s)) - entropy == pytest.approx(found, rel=0.02)


def test_one_cluster_is_the_gaussian_rule():
    factor = clusters.mixture_factor(1024, 256, 0.0, 3.0)
    assert factor == pytest.approx(math.sqrt(1 + 2 * math.log(4)))


def test_the_rule_of_the_mixture_holds_the_entropy_of_two_clusters():
    config = clusters.ClustersConfig(lengths=(256, 2048), rows=40)
    rows = RunResults(clusters.measure(config, "half above", 0))
    moved = {
        rule: rows.mean("entropy", rule=rule, n=2048) - rows.mean("entropy", rule=rule, n=256)
        for rule in clusters.RULES
    }
    assert abs(moved["of the mixture"]) < 0.3 < moved["HoldEntropy"] < moved["1/sqrt d"]
    assert (
        "half above: from 256 to 2048 keys the entropy changes by"
        in clusters.conclude(
            RunResults({**row, "condition": "half above", "seed": 0} for row in rows)
        )[0]
    )
