import math

import pytest

from attentropy.lab.claims.documents import d001_practice
from tests.lab.claims.documents.measured import AUDIT, claims_of, numbers, verdict


@pytest.mark.parametrize("id_", claims_of(d001_practice))
def test_the_measured_verdict_is_the_audited_one(id_):
    assert verdict(id_) == AUDIT[id_]


def test_scales_by_hand():
    found = numbers("001-(57),(58)")
    assert found == pytest.approx({"log_scale": math.log(1024) / 64, "root_scale": 1 / 8})
    assert numbers("001-(60)")["scale"] == pytest.approx(1 / 8 + 0.1 * math.log(1000) / 64)
    assert numbers("001-§24")["exact"] == pytest.approx(math.log(10**6))


def test_the_adaptive_rule_runs_away_and_its_inverse_does_not():
    found = numbers("001-(61)")
    for rule in ("inverse_rule", "root_rule", "newton"):
        assert found[rule] == pytest.approx(4, abs=1e-3)
    assert abs(found["rule_from_4"] - 4) > 1
    assert abs(found["rule_from_1"] - 4) > 1
