import math

import numpy as np
import pytest

from attentropy.lab.claims.documents import d003
from tests.lab.claims.documents.measured import AUDIT, claims_of, numbers, verdict


@pytest.mark.parametrize("id_", claims_of(d003))
def test_the_measured_verdict_is_the_audited_one(id_):
    assert verdict(id_) == AUDIT[id_]


def test_where_the_exponential_overflows():
    found = numbers("003-7")
    for name, kind in (("fp64", np.float64), ("fp32", np.float32), ("fp16", np.float16)):
        info = np.finfo(kind)
        # the logarithm itself is rounded to the precision
        assert found[name] == pytest.approx(math.log(float(info.max)), rel=float(info.eps))


def test_a_gap_counts_by_its_size_whatever_the_level():
    found = numbers("003-4")
    assert found["ratio_gap_001"] == pytest.approx(math.exp(0.01))
    assert found["ratio_gap_1_percent"] == pytest.approx(math.exp(10))
    assert found["e_gap"] == pytest.approx(math.exp(0.01))


def test_bounded_scores_give_one_of_many_keys_little():
    found = numbers("003-15")
    reach = math.log(7 / (1 / found["top_n8"] - 1))  # top = 1/(1 + (n - 1) e^-R)
    assert found["top_n1e4"] == pytest.approx(1 / (1 + 9999 * math.exp(-reach)), rel=1e-6)
