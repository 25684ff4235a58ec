import math

import pytest
import torch

from attentropy.lab.experiments import scales
from attentropy.lab.harness.results import RunResults

SMALL = scales.ScalesConfig(lengths=(64, 256), rows=48)


def test_all_rules_but_two_agree_at_the_reference_length():
    at = torch.tensor([64.0])
    for name, rule in scales.rules(16, 64, 2.0).items():
        factor = float(rule(16, at)) * 4
        assert (factor == pytest.approx(1.0)) is (name not in ("mixed", scales.DOCUMENTS)), name


def test_the_documents_rule_is_log_n_over_d():
    assert float(scales.rules(16, 64, 2.0)["log n/d"](16, torch.tensor([256.0]))) == pytest.approx(
        math.log(256) / 16
    )


@pytest.mark.parametrize("condition", ["gaussian", scales.NARROW])
def test_gaussian_rows_follow_the_exact_theory(condition):
    rows = RunResults(scales.measure(SMALL, condition, 0))
    for row in rows:
        assert row["entropy"] == pytest.approx(row["theory"], abs=0.25), row
    grown = rows.mean("entropy", rule="1/sqrt d", n=256) - rows.mean(
        "entropy", rule="1/sqrt d", n=64
    )
    assert grown == pytest.approx(math.log(4), abs=0.25)


def test_the_planted_key_is_measured_by_its_weight():
    rows = scales.measure(SMALL, "planted", 0)
    rng = torch.Generator().manual_seed(0)
    first = [row for row in rows if row["n"] == 64]
    scores = 2.0 * torch.randn(48, 64, generator=rng, dtype=torch.float32)
    scores[:, 0] = 2.0 * SMALL.margin
    for row in first:
        p = (scores.double() * row["gain"]).softmax(-1)
        assert row["found"] == pytest.approx(p[:, 0].mean().item(), abs=1e-5)
        assert row["entropy"] == pytest.approx(
            torch.special.entr(p).sum(-1).mean().item(), abs=1e-4
        )


def test_the_spread_and_the_entropy_leave_hidden_keys_out():
    s = torch.tensor([[[1.0, 3.0, -torch.inf], [0.0, 0.0, 0.0]]])
    assert scales._spread(s) == pytest.approx(0.5)
    assert scales._entropy(s) == pytest.approx(
        (math.log(1 + math.exp(2)) - 2 / (1 + math.exp(-2)) + math.log(3)) / 2
    )
    assert scales._entropy(0 * s) == pytest.approx((math.log(2) + math.log(3)) / 2)


def test_the_conclusion_names_the_rule_that_moves_least():
    def rows():
        for rule, move in (("1/sqrt d", 2.0), ("log n/log m/sqrt d", -1.0), ("HoldEntropy", 0.1)):
            for n, h in ((64, 3.0), (256, 3.0 + move)):
                yield {"condition": "gaussian", "seed": 0, "rule": rule, "n": n,
                       "entropy": h, "theory": h + 0.05}  # fmt: skip

    said = scales.conclude(RunResults(rows()))
    assert "from n = 64 to 256 the entropy moves least under HoldEntropy (+0.10 nats)" in said[0]
    assert said[-1].endswith("differ by at most 0.05 nats.")
