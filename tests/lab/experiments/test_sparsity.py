import math

import pytest
import torch

from attentropy.lab.experiments import sparsity
from attentropy.lab.harness.results import RunResults

SMALL = sparsity.SparsityConfig(keys=4096, rows=16, lengths=(8, 256), queries=64)


def test_measured_sparsity_is_near_the_closed_form():
    rows = RunResults(sparsity.measure(SMALL, sparsity.FORMS, 0))
    assert set(rows.values("weights")) == {*sparsity.SCORED, "decay"}
    for row in rows:
        if row["weights"] == "softmax" and row["x"] > 1.5:
            continue  # finitely many keys do not show the rare large weights
        assert row["S"] == pytest.approx(row["theory"], rel=0.05), row


def test_decay_is_exact():
    row = sparsity._decay(0.9, 100)
    weights = [0.9**i for i in range(100)]
    want = sum(weights) / math.sqrt(100 * sum(w * w for w in weights))
    assert row["S"] == pytest.approx(want, rel=1e-5)
    assert row["theory"] == pytest.approx(want, rel=1e-9)


def test_sparsity_of_given_weights():
    assert sparsity._sparsity(torch.tensor([[3.0, -4.0]])) == pytest.approx(3.5 / math.sqrt(12.5))


def test_softmax_finds_the_key_that_decay_cannot():
    rows = RunResults(sparsity.measure(SMALL, sparsity.RETRIEVAL, 0))
    level = {w: rows.mean("accuracy", weights=w, n=256) for w in rows.values("weights")}
    assert level["softmax"] > 95
    assert level["decay 0.9"] < 30
    assert rows.mean("S", weights="softmax", n=256) < rows.mean("S", weights="linear", n=256)
    assert all("S" not in row for row in rows.where(weights="linear, elu + 1"))


def test_the_conclusion_says_how_far_the_forms_are_off():
    forms = [
        {"condition": sparsity.FORMS, "weights": w, "x": x, "S": s, "theory": 0.5}
        for w, x, s in (("linear", 1.0, 0.51), ("softmax", 2.0, 0.9), ("decay", 0.9, 0.5))
    ]
    found = [
        {"condition": sparsity.RETRIEVAL, "weights": w, "n": n, "accuracy": 100.0 - n}
        for w in ("softmax", "linear")
        for n in (8, 64)
    ]
    said = sparsity.conclude(RunResults([*forms, *found]))
    assert said[0].startswith("Closed forms: within 2.0 % of the measurement")
    assert (
        said[1] == "One key among 64 is found in this share of the rows: softmax 36 %, linear 36 %."
    )
