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
    assert generalise.conclude(RunResults(rows))[0].startswith(
        "Entropy and what training sets have"
    )


def test_correlation_of_a_line_is_one():
    rows = RunResults({"entropy": x, "new": 3 - 2 * x} for x in (0.1, 0.5, 0.7, 1.3))
    r, error = generalise.correlation(rows, "new")
    assert r == pytest.approx(-1)
    assert error == pytest.approx(0, abs=1e-9)
