import tracemalloc

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attentropy.theory import populations as p
from attentropy.theory.bounds import worst_deficit
from attentropy.theory.entropy import entropy


@given(st.floats(0, 1e6), st.floats(1e-3, 10))
def test_uniform_scores_lose_less_than_the_worst_row(r, step):
    assert 0 <= p.uniform_deficit(r) <= worst_deficit(r) + 1e-15
    assert p.uniform_deficit(r + step) > p.uniform_deficit(r)


def test_uniform_scores_on_a_grid():
    n = 100000
    grid = 7.0 * (np.arange(n) + 0.5) / n
    assert np.log(n) - entropy(grid) == pytest.approx(p.uniform_deficit(7.0), rel=1e-6)


@given(st.sampled_from([1, 2, 3, 64, 1000]), st.floats(0, 400), st.floats(1e-2, 5))
def test_sphere_deficit_grows_with_scale(d, lam, step):
    assert 0 <= p.sphere_deficit(d, lam) <= worst_deficit(2 * lam) + 1e-9
    assert p.sphere_deficit(d, lam + step) >= p.sphere_deficit(d, lam)
    if d > 1:  # two keys reach log 2, and stay there
        assert p.sphere_deficit(d, lam + step) > p.sphere_deficit(d, lam)


def test_sphere_deficit_of_two_keys_never_falls_and_is_exact():
    lam = np.unique(np.concatenate([np.linspace(0, 60, 20001), np.logspace(-8, 3, 2000)]))
    deficit = p.sphere_deficit(1, lam)
    assert (np.diff(deficit) >= 0).all()
    assert deficit[-1] == np.log(2)
    mpmath.mp.dps = 40
    for one in (1e-8, 1e-3, 0.3, 0.4999, 0.5, 0.5001, 1.0, 7.0, 20.0, 238.0):
        exact = mpmath.mpf(one) * mpmath.tanh(one) - mpmath.log(mpmath.cosh(one))
        assert p.sphere_deficit(1, one) == pytest.approx(float(exact), rel=2e-15)


def test_sphere_limits():
    assert p.sphere_deficit(50, 1e-4) == pytest.approx(1e-8 / 100, rel=1e-6)
    assert p.sphere_deficit(3, 5.0) == pytest.approx(
        p.uniform_deficit(10.0), rel=1e-12
    )  # cosines are uniform
    assert p.sphere_deficit(1, 2.0) == pytest.approx(2 * np.tanh(2) - np.log(np.cosh(2)), rel=1e-13)
    assert p.sphere_deficit(7, 0.0) == 0
    for d, lam in ((3, 500.5), (40, 500.5)):
        below, above = p.sphere_deficit(d, 500.0), p.sphere_deficit(d, 500.0 + 1e-9)
        assert below == pytest.approx(above, rel=1e-11), (d, lam)


WIDE = [(600, 3e4), (1e4, 1e5), (3e6, 1e6), (2e7, 2e12), (5e7, 1e13), (1e9, 1e15), (1e12, 1e13),
        (1e10, 1e9), (1e20, 1e15), (1e30, 1e17), (1e12, 5e7)]  # fmt: skip


@pytest.mark.parametrize(("d", "lam"), WIDE)
def test_sphere_deficit_of_many_dimensions_at_a_large_scale(d, lam):
    with mpmath.workdps(60):
        exact = float(_sphere_by_quadrature(mpmath.mpf(d), mpmath.mpf(lam)))
    tracemalloc.start()
    found = p.sphere_deficit(d, lam)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found == pytest.approx(exact, rel=1e-15)
    assert most < 1 << 20


def _sphere_by_quadrature(d, lam):
    """lam E[c] - log E e^(lam c), c of density (1 - c^2)^((d-3)/2), around the top of the tilted."""
    a = (d - 3) / 2
    top = lam / (a + mpmath.sqrt(a * a + lam * lam))
    width = (1 - top * top) / mpmath.sqrt(2 * a * (1 + top * top))
    parts = [top + width * i for i in range(-14, 15, 4) if abs(top + width * i) < 1]

    def tilted(c):
        return mpmath.exp(lam * (c - top) + a * mpmath.log((1 - c * c) / (1 - top * top)))

    total = mpmath.quad(tilted, parts)
    mean = top + mpmath.quad(lambda c: (c - top) * tilted(c), parts) / total
    whole = mpmath.loggamma(d / 2) - mpmath.loggamma((d - 1) / 2) - mpmath.log(mpmath.pi) / 2
    height = lam * top + a * mpmath.log(1 - top * top)
    return lam * mean - whole - height - mpmath.log(total)


@pytest.mark.parametrize(("d", "lam"), [(1500, 19986.0), (1e5, 8.979e3), (1e9, 8.944276e5)])
def test_sphere_deficit_has_no_step_where_terms_are_no_longer_summed(d, lam):
    below, above = p.sphere_deficit(d, lam * (1 - 1e-4)), p.sphere_deficit(d, lam * (1 + 1e-4))
    at, slope = p.sphere_deficit(d, lam), (above - below) / 2
    assert below + slope == pytest.approx(at, rel=1e-7)
    assert above - slope == pytest.approx(at, rel=1e-7)


def test_sphere_deficit_at_the_ends_of_floats():
    assert p.sphere_deficit(1e300, 1e140) == pytest.approx(5e-21, rel=1e-12)
    assert p.sphere_deficit(1e300, 1e160) == pytest.approx(5e19, rel=1e-15)
    assert np.isfinite(p.sphere_deficit(1e300, 1e300))
    assert np.isfinite(p.sphere_deficit(1e200, 1e-300))


def test_sphere_against_monte_carlo():
    rng = np.random.default_rng(0)
    k = rng.normal(size=(200000, 16))
    c = k[:, 0] / np.linalg.norm(k, axis=1)
    assert np.log(200000) - entropy(6.0 * c) == pytest.approx(p.sphere_deficit(16, 6.0), rel=0.01)


def test_freezing_scale_limits():
    assert p.sphere_freezing_scale(1e8, 1000) == pytest.approx(
        np.sqrt(2e8 * np.log(1000)), rel=1e-6
    )
    assert p.sphere_freezing_scale(5, 1) == 0


def test_arrays_equal_scalars():
    d, lam = np.array([2, 64])[:, None], np.array([0.0, 3.0, 900.0])
    np.testing.assert_array_equal(
        p.sphere_deficit(d, lam), [[p.sphere_deficit(a, b) for b in lam] for a in d[:, 0]]
    )
    np.testing.assert_array_equal(p.uniform_deficit(lam), [p.uniform_deficit(a) for a in lam])
    n = np.array([2.0, 1e9])
    np.testing.assert_array_equal(
        p.sphere_freezing_scale(64, n), [p.sphere_freezing_scale(64, a) for a in n]
    )
