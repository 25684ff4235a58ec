"""Gains between two rules, seed by seed: both saw the same weights or batches."""

import math
from typing import Any, NamedTuple

from attentropy.lab.harness.results import Estimate, RunResults


class Gain(NamedTuple):
    """Differences between two rules, seed by seed.

    Attributes:
        spread: mean and standard deviation of the differences.
    """

    spread: Estimate

    @property
    def verdict(self) -> str:
        """helps or hurts if Student's t-test at 95 % excludes no difference, else undecided."""
        from scipy.stats import t

        mean, sd, size = self.spread
        if size < 2 or abs(mean) <= float(t.ppf(0.975, size - 1)) * sd / math.sqrt(size):
            return "undecided"
        return "helps" if mean > 0 else "hurts"

    def text(self, digits: int = 1) -> str:
        """`+mean ± sd`.

        Args:
            digits: after the point.
        """
        mean, sd, size = self.spread
        if not size:
            return "-"
        return f"{mean:+.{digits}f}" + (f" ± {sd:.{digits}f}" if size > 1 else "")


def gain(results: RunResults, metric: str, *, rule: str, over: str, **where: Any) -> Gain:
    """`metric` of one rule minus that of another, over the seeds that have both.

    Args:
        results: rows of a run.
        metric: column to compare.
        rule: the one rule.
        over: the other.
        where: columns and values that choose rows.

    >>> rows = [{"seed": s, "rule": r, "x": x} for s, r, x in [(0, "a", 3.0), (0, "b", 1.0)]]
    >>> gain(RunResults(rows), "x", rule="a", over="b").text()
    '+2.0'
    """
    chosen = results.where(**where)
    differences = []
    for seed in chosen.values("seed"):
        a, b = (chosen.mean(metric, rule=name, seed=seed) for name in (rule, over))
        if math.isfinite(a - b):
            differences.append(a - b)
    return Gain(Estimate.of(differences))
