import pytest

from attentropy.lab.claims.documents import identities
from tests.lab.claims.documents.measured import AUDIT, claims_of, numbers, verdict


@pytest.mark.parametrize("id_", claims_of(identities))
def test_the_measured_verdict_is_the_audited_one(id_):
    assert verdict(id_) == AUDIT[id_]


@pytest.mark.parametrize("id_", [f"ID-{i}" for i in (1, 3, 4, 5, 6, 7, 8, 9, 10)])
def test_both_sides_agree_to_rounding(id_):
    assert abs(numbers(id_)["gap"]) < 1e-7


def test_the_derivative_by_the_scale_adds_up_to_the_deficit():
    found = numbers("ID-6")
    assert found["integral"] == pytest.approx(found["deficit"], rel=1e-6)


def test_log1p_keeps_the_digits_that_the_plain_form_loses():
    found = numbers("ID-2")
    assert found["log1p_relative_error"] < 1e-12 < found["plain_relative_error"]


def test_only_the_exponential_sharpens_with_the_query():
    found = numbers("ID-15")
    for kind in ("relu2", "identity"):
        assert found[f"{kind}_x100"] == pytest.approx(found[f"{kind}_x1"])
    assert found["exp_x10"] < 1e-9 < found["exp_x1"]
