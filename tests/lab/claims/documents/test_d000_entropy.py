import math

import pytest

from attentropy.lab.claims.documents import d000_entropy
from tests.lab.claims.documents.measured import AUDIT, claims_of, numbers, verdict


@pytest.mark.parametrize("id_", claims_of(d000_entropy))
def test_the_measured_verdict_is_the_audited_one(id_):
    assert verdict(id_) == AUDIT[id_]


def test_the_most_that_cosine_scores_give_up():
    m = 2 / (1 - math.exp(-2))
    assert numbers("000-B.5")["limit"] == pytest.approx(m - 1 - math.log(m))
    assert numbers("000-B.5")["worst_n1000"] == pytest.approx(m - 1 - math.log(m), abs=1e-4)


def test_two_tied_scores_keep_one_bit():
    assert numbers("000-(39)")["tied"] == pytest.approx(math.log(2))
    assert numbers("000-(39)")["single"] == pytest.approx(0.0, abs=1e-12)


def test_scores_at_a_small_temperature():
    found = numbers("000-(44)")
    assert found["exact"] == pytest.approx(1 / 0.07)
    assert found["error"] == pytest.approx(14.3 - 1 / 0.07)
