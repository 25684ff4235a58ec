import math

import pytest
import torch

from attentropy.lab.experiments import positions
from attentropy.lab.harness.results import RunResults

SMALL = positions.PositionsConfig(
    amplitudes=(0.01, 1.0, 8.0), slopes=(0.125, 2.0), length=96, width=32, heads=4
)


def test_a_decay_without_content_is_geometric():
    rows = positions.measure(SMALL, f"{positions.RELATIVE}, no content", 0)
    for row in rows:
        weights = torch.exp(-row["strength"] * torch.arange(96, dtype=torch.float64))
        p = weights / weights.sum()
        want = torch.special.entr(p).sum().item() / math.log(96)
        assert row["entropy"] == pytest.approx(want, abs=1e-5)
        assert row["theory"] == pytest.approx(want, abs=1e-3)
        assert row["top"] == pytest.approx(p[0].item(), abs=1e-5)


def test_quiet_positions_are_uniform_and_loud_ones_collapse():
    rows = RunResults(positions.measure(SMALL, f"{positions.ABSOLUTE}, no content", 0))
    assert rows.mean("entropy", strength=0.01) > positions.UNIFORM
    assert rows.mean("entropy", strength=8.0) < positions.COLLAPSED


def test_content_hides_what_distance_explains():
    share = {
        content: RunResults(positions.measure(SMALL, f"{positions.ABSOLUTE}, {content}", 0)).mean(
            "share", strength=1.0
        )
        for content in ("content", "no content")
    }
    assert 0 <= share["content"] < share["no content"] <= 1


def test_the_conclusion_sorts_strengths_by_entropy():
    rows = [
        {"condition": "c", "seed": 0, "strength": s, "entropy": h}
        for s, h in ((0.1, 0.99), (1.0, 0.6), (2.0, 0.5), (9.0, 0.1))
    ]
    said = positions.conclude(RunResults(rows))[0]
    assert said == (
        "c: uniform (H > 0.95 log n) at 0.1, useful at 1 to 2, collapsed (H < 0.25 log n) at 9."
    )
    assert "none of the strengths tried" in positions.conclude(RunResults(rows[:1]))[0]


def test_every_kind_comes_with_and_without_content():
    assert len(set(positions.conditions(SMALL))) == 4
