import math

import pytest

from attentropy.lab.harness.results import Estimate, RunResults

ROWS = [
    {"seed": 0, "n": 1, "h": 1.0},
    {"seed": 0, "n": 1, "h": 3.0},
    {"seed": 1, "n": 1, "h": 6.0},
    {"seed": 1, "n": 2, "h": None},
    {"seed": 1, "n": 2, "k": 5},
]


def test_within_a_seed_rows_are_averaged_before_the_deviation_is_taken():
    spread = RunResults(ROWS).over("h", n=1)
    assert spread.mean == 4.0
    assert spread.sd == pytest.approx(math.sqrt(8))
    assert spread.size == 2


def test_where_takes_one_or_several_values():
    assert len(RunResults(ROWS).where(n=1, seed=0)) == 2
    assert len(RunResults(ROWS).where(n=(1, 2))) == 5
    assert RunResults(ROWS).values("n") == [1, 2]


def test_curve_leaves_out_places_without_numbers():
    assert RunResults(ROWS).curve("n", "h")[0] == [1]


def test_text():
    assert Estimate.of([]).text(2) == "-"
    assert Estimate.of([1.0, math.inf]).text(2) == "1.00"
    assert Estimate.of([1.0, 2.0]).text(1) == "1.5 ± 0.7"
