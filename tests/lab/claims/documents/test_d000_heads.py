import math

import pytest

from attentropy.lab.claims.documents import d000_heads
from tests.lab.claims.documents.measured import AUDIT, claims_of, numbers, verdict


@pytest.mark.parametrize("id_", claims_of(d000_heads))
def test_the_measured_verdict_is_the_audited_one(id_):
    assert verdict(id_) == AUDIT[id_]


def test_entropy_and_rank_are_two_things():
    assert numbers("000-(73)") == pytest.approx(
        {"uniform_expH": 64, "uniform_rank": 1, "identity_expH": 1, "identity_rank": 64}
    )


def test_a_row_of_few_keys():
    assert numbers("000-(78)") == pytest.approx({"five": math.log(5), "all": math.log(20)})


def test_a_pure_relative_bias_gives_a_geometric_row():
    rate = math.exp(-0.5)
    wanted = -math.log(1 - rate) - rate * math.log(rate) / (1 - rate)
    assert numbers("000-(75)")["pure"] == pytest.approx(wanted, rel=1e-6)


def test_rows_over_neighbours_sum_to_one_only_with_two_indices():
    found = numbers("000-(77)")
    assert found["row_sum_as_meant"] == pytest.approx(1)
    assert found["worst_row_sum_as_written"] > 1.5
