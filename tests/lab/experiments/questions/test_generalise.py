import pytest

from attentropy.lab.experiments.questions import generalise
from attentropy.lab.harness.results import RunResults

SMALL = generalise.GeneraliseConfig(steps=2, sets=16, tested=32, longer=32)


def test_rows_and_conclusion():
    rows = [
        {**row, "condition": name, "seed": 0}
        for name in generalise.conditions(SMALL)
        for row in generalise.measure(SMALL, name, 0)
    ]
    assert [row["regulariser"] for row in rows[:7]] == list(generalise.KINDS)
    for row in rows:
        assert row["gap"] == pytest.approx(row["trained"] - row["new"])
        assert row["lost to noise"] == pytest.approx(row["new"] - row["noisy"])
    said = generalise.conclude(RunResults(rows))
    assert " of 7 models answer at least 80 % of their training sets as taught" in said[0]
    assert said[1].startswith("Entropy and how much more is right on training sets")
    assert said[5].startswith("none: entropy ")


def test_correlation_of_a_line_is_one():
    rows = RunResults(
        {"seed": i, "entropy": x, "new": 3 - 2 * x} for i, x in enumerate((0.1, 0.5, 0.7, 1.3))
    )
    r, error = generalise.correlation(rows, "new")
    assert r == pytest.approx(-1)
    assert error == pytest.approx(0, abs=1e-9)


def test_means_of_regularisers_do_not_correlate_within_them():
    rows = RunResults(
        {"seed": seed, "regulariser": name, "entropy": high + seed, "new": high - seed}
        for name, high in (("a", 0.0), ("b", 100.0))
        for seed in range(3)
    )
    assert generalise.correlation(rows, "new")[0] > 0.99
    inside = generalise.within_regularisers(rows, "new")
    assert generalise.correlation(inside, "new")[0] == pytest.approx(-1)
