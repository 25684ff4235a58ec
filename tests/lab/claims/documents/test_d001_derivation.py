import math

import pytest

from attentropy.lab.claims.documents import d001_derivation
from tests.lab.claims.documents.measured import AUDIT, claims_of, numbers, verdict


@pytest.mark.parametrize("id_", claims_of(d001_derivation))
def test_the_measured_verdict_is_the_audited_one(id_):
    assert verdict(id_) == AUDIT[id_]


def test_the_second_cumulant_is_what_the_mean_leaves_out():
    found = numbers("001-B.3")
    assert found["predicted"] == 0.5
    assert found["error"] == pytest.approx(0.5, rel=0.01)


def test_the_variance_of_scores_with_and_without_a_mean():
    found = numbers("001-(20)–(22)")
    assert found["scaled"] == pytest.approx(1, rel=0.03)
    assert found["mean_one"] == pytest.approx(3, rel=0.03)


def test_entropies_are_those_of_plain_sums():
    found = numbers("001-(24b)")
    slope = (found["H_n65536"] - found["H_n64"]) / math.log(65536 / 64)
    assert slope < 0, "kappa = 1 does not keep the entropy: it falls"
