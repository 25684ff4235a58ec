import math

import pytest

from attentropy.lab.claims.documents import d000_noise
from tests.lab.claims.documents.measured import AUDIT, claims_of, numbers, verdict


@pytest.mark.parametrize("id_", claims_of(d000_noise))
def test_the_measured_verdict_is_the_audited_one(id_):
    assert verdict(id_) == AUDIT[id_]


def test_exponential_moments_of_three_laws():
    found = numbers("000-(24)")
    assert found["mgf"] == pytest.approx(math.exp(1.5**2 / 2))
    assert found["rho"] == pytest.approx(math.exp(1.5**2) - 1)
    found = numbers("000-(26)")
    assert found["mgf"] == pytest.approx(math.sinh(2) / 2)
    assert found["rho"] == pytest.approx(2 / math.tanh(2) - 1)
    found = numbers("000-(27)")
    assert found["mgf_b06"] == pytest.approx(1 / (1 - 0.6**2))
    # (1/2) int e^(x - |x|) from -c to c grows without end: c/2 + 1/4
    assert found["b1_cut_at_20"] == pytest.approx(10.25, rel=1e-3)
    assert found["b1_cut_at_40"] == pytest.approx(20.25, rel=1e-3)


def test_a_mean_of_a_ratio_needs_the_corrected_expansion():
    found = numbers("000-(16)")
    right, wrong = (abs(found["measured"] - found[name]) for name in ("corrected", "claimed"))
    assert right < 0.1 * wrong
