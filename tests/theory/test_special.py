import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attentropy.theory import _special as s

positive = st.floats(1e-9, 600)


@given(positive)
def test_coth_excess_solves_its_differential_relation(z):
    """With f = z coth z - 1: log(sinh z / z)' = f / z."""
    h = 1e-4 * z
    slope = (s.log_sinhc(np.array(z + h)) - s.log_sinhc(np.array(z - h))) / (2 * h)
    assert slope * z == pytest.approx(float(s.coth_excess(np.array(z))), rel=1e-5)


@pytest.mark.parametrize("f", [s.coth_excess, s.log_sinhc])
def test_branches_meet(f):
    below, above = np.nextafter(1.0, 0), np.nextafter(1.0, 2)
    assert f(np.array(below)) == pytest.approx(float(f(np.array(above))), rel=1e-14)


def test_small_arguments_keep_their_digits():
    z = np.array(1e-8)
    assert s.coth_excess(z) == pytest.approx(1e-16 / 3, rel=1e-14)
    assert s.log_sinhc(z) == pytest.approx(1e-16 / 6, rel=1e-14)
    assert s.log1p_deficit(z) == pytest.approx(1e-16 / 2 - 1e-24 / 3, rel=1e-14)
    assert s.log1p_deficit(np.array(0.5 - 1e-16)) == pytest.approx(0.5 - math.log(1.5), rel=1e-14)


@given(st.floats(0, 26))
def test_exponential_of_a_square_does_not_feel_its_rounding(x):
    from fractions import Fraction

    exact = Fraction(x) ** 2
    rounded = float(exact)
    correction = float(exact - Fraction(rounded))
    wanted = math.exp(rounded) * (1 + correction)
    assert s.exp_scaled_square(np.array(x), 1.0) == pytest.approx(wanted, rel=1e-15)
