import math

import pytest

from attentropy.lab.claims.documents import d002
from tests.lab.claims.documents.measured import AUDIT, claims_of, numbers, verdict


@pytest.mark.parametrize("id_", claims_of(d002))
def test_the_measured_verdict_is_the_audited_one(id_):
    assert verdict(id_) == AUDIT[id_]


def test_closed_forms_by_hand():
    assert numbers("002-6")["rule"] == pytest.approx(math.exp(-(1.5**2) / 2))
    assert numbers("002-6")["measured"] == pytest.approx(math.exp(-(1.5**2) / 2), rel=0.01)
    assert numbers("002-8")["at_0"] == pytest.approx(1 / math.sqrt(6))
    assert numbers("002-11")["floor"] == pytest.approx(math.sqrt(2 / math.pi))
    assert numbers("002-21")["effective_keys"] == pytest.approx(1.9 / 0.1)


def test_norms_of_a_query():
    assert numbers("002-16") == pytest.approx({"largest": 1, "claimed": 8, "dense": 1 / 8})
