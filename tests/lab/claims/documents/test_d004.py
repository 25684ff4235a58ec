import pytest

from attentropy.lab.claims.documents import d004
from tests.lab.claims.documents.measured import AUDIT, claims_of, numbers, verdict


@pytest.mark.parametrize("id_", claims_of(d004))
def test_the_measured_verdict_is_the_audited_one(id_):
    assert verdict(id_) == AUDIT[id_]


def test_variances_by_hand():
    assert numbers("004-(5.1.5)")["rule"] == pytest.approx(16 * 1.5**4)
    assert numbers("004-(5.1.5)")["independent"] == pytest.approx(81, rel=0.03)
    assert numbers("004-§5.1.8b")["rule"] == pytest.approx(2 / (512 + 64))
    found = numbers("004-§5.1.8c")
    assert found["forward"] == pytest.approx(2 * 512 / 576, rel=0.03)
    assert found["backward"] == pytest.approx(2 * 64 / 576, rel=0.03)


def test_parameters_are_counted():
    assert numbers("004-§5.1.3")["parameters"] == 3 * 64**2


def test_a_level_changes_nothing_and_a_factor_does():
    found = numbers("004-§5.1.5a")
    assert found["top_after_level"] == pytest.approx(found["top_before"])
    assert found["top_after_factor"] == pytest.approx(1)
