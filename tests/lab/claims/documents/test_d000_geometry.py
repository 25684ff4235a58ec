import pytest

from attentropy.lab.claims.documents import d000_geometry
from tests.lab.claims.documents.measured import AUDIT, claims_of, numbers, verdict


@pytest.mark.parametrize("id_", claims_of(d000_geometry))
def test_the_measured_verdict_is_the_audited_one(id_):
    assert verdict(id_) == AUDIT[id_]


def test_scores_of_vectors_with_a_mean_vary_more():
    found = numbers("000-(65),(66)")
    assert found["rule"] == pytest.approx(64 * (1 + 2 * 0.5**2))
    assert found["mean_half"] == pytest.approx(found["rule"], rel=0.03)
    assert found["centred"] == pytest.approx(64, rel=0.03)


def test_the_factor_of_the_derivative_is_largest_at_one_half():
    assert numbers("000-§13a") == {"best": 0.5, "value": 0.25}
    # seven equal keys cannot be cut in halves: 4 * 3/7 * 4/7
    assert numbers("000-§13b")["sup_uniform_n7"] == pytest.approx(48 / 49)


def test_the_gradient_in_the_fisher_metric_gives_the_derivative():
    found = numbers("000-(50)")
    assert found["corrected"] == pytest.approx(found["dH"], rel=1e-6)
    assert abs(found["claimed"] - found["dH"]) > 0.5
