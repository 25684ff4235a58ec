import math

from attentropy.lab.harness.gains import Gain, gain
from attentropy.lab.harness.results import Estimate, RunResults


def test_differences_are_taken_within_seeds():
    levels = {"a": (3.0, 10.0, 5.0), "b": (1.0, 7.0, None)}
    rows = RunResults(
        {"rule": rule, "seed": seed, "n": 8, "x": x}
        for rule, xs in levels.items()
        for seed, x in enumerate(xs)
    )
    found = gain(rows, "x", rule="a", over="b", n=8)
    assert found.spread == Estimate.of([2.0, 3.0])
    assert found.text() == "+2.5 ± 0.7"
    assert gain(rows, "x", rule="a", over="b", n=9).text() == "-"
    assert gain(rows, "x", rule="a", over="b", seed=0).text(2) == "+2.00"


def test_a_verdict_needs_more_than_chance():
    assert Gain(Estimate.of([1.0, 1.1, 0.9])).verdict == "helps"
    assert Gain(Estimate.of([-1.0, -1.1, -0.9])).verdict == "hurts"
    assert Gain(Estimate.of([1.0, 2.0, 3.0])).verdict == "undecided"  # t = 3.46, not 4.30
    assert Gain(Estimate.of([1.5, 2.0, 2.5])).verdict == "helps"  # t = 6.93
    assert Gain(Estimate(5.0, math.nan, 1)).verdict == "undecided"
