import math

import pytest

from attentropy.lab.claims.documents import rem
from tests.lab.claims.documents.measured import AUDIT, claims_of, numbers, verdict


@pytest.mark.parametrize("id_", claims_of(rem))
def test_the_measured_verdict_is_the_audited_one(id_):
    assert verdict(id_) == AUDIT[id_]


def test_the_frozen_phase_at_one_half():
    # psi(1) - psi(1/2) = 2 log 2
    assert numbers("REM-2")["limit"] == pytest.approx(2 * math.log(2))


def test_below_freezing_the_annealed_entropy_is_exact():
    found = numbers("REM-1")
    assert found["exact"] == pytest.approx(found["annealed"], abs=0.01)


def test_the_mass_of_a_planted_key_is_measured():
    found = numbers("REM-9")
    assert found["measured"] == pytest.approx(found["rule"], rel=0.01)
    assert found["below_threshold"] < 1e-5


def test_log_n_does_not_hold_the_entropy_of_gaussian_scores():
    found = numbers("REM-4")
    assert found["n1e4"] > found["n1e8"] > found["n1e16"]
