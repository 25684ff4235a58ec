import math

import pytest

from attentropy.lab.claims.documents import d001_asymptotics
from tests.lab.claims.documents.measured import AUDIT, claims_of, numbers, verdict


@pytest.mark.parametrize("id_", claims_of(d001_asymptotics))
def test_the_measured_verdict_is_the_audited_one(id_):
    assert verdict(id_) == AUDIT[id_]


def test_uniform_scores_lose_log_range_less_one():
    found = numbers("001-(32)")
    assert found["deficit"] == pytest.approx(math.log(10) - 1, rel=1e-3)
    assert found["corrected"] == pytest.approx(found["deficit"], rel=1e-3)


def test_nats_are_no_bits():
    found = numbers("001-§14a")
    assert found["bits"] == pytest.approx(found["nats"] / math.log(2))
    assert found["bits"] <= found["code_length"] < found["bits"] + 1
    assert numbers("001-§14b")["code_length"] == 6


def test_the_largest_of_n_normal_scores():
    found = numbers("001-(38)")
    assert abs(found["two_term"]) < abs(found["error"]) / 10
