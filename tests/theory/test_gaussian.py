import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attentropy.theory import gaussian as g
from attentropy.theory import init
from attentropy.theory._quadrature import moments
from attentropy.theory.entropy import entropy, log_collision, logsumexp, softmax, varentropy

sizes = st.sampled_from([1, 2, 3, 17, 1000, 10**6, 10**12])
spreads = st.floats(0, 50)


def within_four_errors(samples, wanted):
    error = np.std(samples) / np.sqrt(len(samples))
    assert abs(np.mean(samples) - wanted) < 4 * error, (np.mean(samples), wanted, error)


@pytest.mark.parametrize(
    ("n", "x"), [(2, 0.7), (5, 3.0), (5, 40.0), (100, 1.0), (100, 6.0), (3000, 0.4), (3000, 4.0)]
)
def test_rows_against_monte_carlo(n, x):
    s = x * np.random.default_rng(n).normal(size=(2_000_000 // n // 2, n))
    within_four_errors(entropy(s), g.expected_entropy(n, x))
    within_four_errors(logsumexp(s), g.expected_log_partition(n, x))
    within_four_errors(np.exp(log_collision(s)), g.expected_collision(n, x))
    within_four_errors(varentropy(s), g.expected_varentropy(n, x))


@given(sizes, spreads)
def test_steins_identity_ties_the_three_moments(n, x):
    """E_p[s] = x^2 (1 - E sum p^2), so E H = E log Z - x^2 (1 - E sum p^2)."""
    m = moments(float(n), x)
    assert m.entropy == pytest.approx(
        m.log_partition - x * x * (1 - m.collision), rel=1e-9, abs=1e-9
    )


@given(sizes, spreads, st.floats(0.01, 5))
def test_entropy_falls_and_collision_rises_with_spread(n, x, step):
    assert g.expected_entropy(n, x + step) <= g.expected_entropy(n, x) + 1e-13
    assert g.expected_collision(n, x + step) >= g.expected_collision(n, x) * (1 - 1e-13)


@given(sizes, st.floats(0.05, 50))
def test_varentropy_is_the_slope_of_the_entropy(n, x):
    d = 1e-3
    h = [g.expected_entropy(n, x * np.exp(k * d)) for k in (-2, -1, 1, 2)]
    slope = (h[0] - 8 * h[1] + 8 * h[2] - h[3]) / (12 * d)
    assert g.expected_varentropy(n, x) == pytest.approx(-slope, rel=1e-7, abs=1e-9)


@given(sizes, spreads)
def test_bounds(n, x):
    h = g.expected_entropy(n, x)
    assert 0 <= h <= np.log(n) + 1e-12
    assert h >= np.log(n) - x * x / 2 - 1e-12
    assert g.expected_log_partition(n, x) <= np.log(n) + x * x / 2 + 1e-9
    assert 1 / n * (1 - 1e-12) <= g.expected_collision(n, x) <= 1 + 1e-12


@given(st.integers(2, 10**9), st.floats(1e-3, 40))
def test_scale_for_entropy_inverts_expected_entropy(n, x):
    h = g.expected_entropy(n, x)
    assert g.scale_for_entropy(n, h) == pytest.approx(x, rel=1e-7)


def test_scale_near_uniform_keeps_its_digits():
    n, x = 64, 1e-3
    h = np.log(n) - float(g.expected_deficit(n, x))
    assert g.scale_for_entropy(n, h) == pytest.approx(x, rel=1e-8)
    assert g.scale_for_entropy(5, np.log(5)) == 0


def test_small_spread_deficit_meets_the_quadrature():
    for n in (2, 10, 1000):
        below, above = g.expected_deficit(n, 2.999e-3), g.expected_deficit(n, 3.001e-3)
        assert below / 2.999**2 == pytest.approx(above / 3.001**2, rel=1e-8)


def test_holding_entropy_exactly_and_by_rule():
    x = g.hold_entropy_spread(2**20, 1024, 2.0)
    assert g.expected_entropy(2**20, x) == pytest.approx(g.expected_entropy(1024, 2.0), rel=1e-9)
    assert g.hold_entropy_spread(1024, 1024, 2.0) == pytest.approx(2.0, rel=1e-9)
    assert g.hold_entropy_spread(2, 1024, 1.0) == 0
    assert g.entropy_rule(1.0, 1024, 4) == 0
    assert g.entropy_rule(1.0, 1024, 1024) == 1


def test_drift_table_of_the_audit():
    table = g.drift_table([8192, 131072, 2**20], spread0=2.0, n0=1024)
    np.testing.assert_allclose(table["constant"], [7.029, 9.785, 11.863], atol=6e-4)
    np.testing.assert_allclose(table["sqrt_log"], [6.467, 8.408, 9.876], atol=6e-4)
    np.testing.assert_allclose(table["log"], [5.792, 6.351, 6.477], atol=6e-4)
    np.testing.assert_allclose(table["hold"], [5.254, 5.616, 5.890], atol=6e-4)
    np.testing.assert_allclose(table["exact"], g.expected_entropy(1024, 2.0), rtol=1e-9)
    with pytest.raises(ValueError, match="rule must be one of constant"):
        g.spread_under("cubic", spread0=1.0, n0=10, n=20)


def test_phases():
    assert g.freezing_spread(1024) == pytest.approx(np.sqrt(2 * np.log(1024)))
    assert g.entropy_limit(1e12, 1.0) == pytest.approx(g.expected_entropy(1e12, 1.0), abs=1e-9)
    assert g.frozen_entropy(0.5) == pytest.approx(2 * np.log(2), rel=1e-14)
    assert g.frozen_collision(0.25) == 0.75
    assert g.second_order_entropy(10**6, 1.0) == pytest.approx(
        g.expected_entropy(10**6, 1.0), abs=1e-9
    )
    assert g.local_exponent(1024, np.log(1024) / 2) == 1
    assert g.local_exponent(1024, 0.0) == np.inf


def test_frozen_entropy_of_poisson_dirichlet_weights():
    rng = np.random.default_rng(0)
    arrivals = np.cumsum(rng.exponential(size=(2000, 3000)), 1)
    h = entropy(-np.log(arrivals) / 0.4)
    within_four_errors(h, g.frozen_entropy(0.4))


def test_maximum():
    assert g.expected_max(1) == 0
    assert g.expected_max(3) == pytest.approx(1.5 / np.sqrt(np.pi), rel=1e-13)
    # by mpmath, 60 digits
    assert g.expected_max(1e100) == pytest.approx(21.300425915226435, rel=1e-13)
    assert g.expected_max(1e300) == pytest.approx(37.062646206645245, rel=1e-13)
    top = np.random.default_rng(1).normal(size=(20000, 50)).max(1)
    within_four_errors(top, g.expected_max(50))
    assert abs(g.expected_max_two_term(1e12) / g.expected_max(1e12) - 1) < 1e-3


def test_planted_key():
    rng = np.random.default_rng(2)
    bulk = rng.normal(size=(2000, 1000))
    p = softmax(1.5 * np.concatenate([np.full((2000, 1), 5.0), bulk], 1))[:, 0]
    assert p.mean() == pytest.approx(g.planted_mass(1.5, 1000, 5.0), abs=0.02)
    grid = np.linspace(0.1, 9, 500)
    best = grid[g.planted_mass(grid, 50, 3.0, 0.8).argmax()]
    assert best == pytest.approx(g.best_scale(3.0, 0.8), abs=0.02)
    assert g.retrieval_threshold(1024, 2.0) == pytest.approx(2 * g.freezing_spread(1024))


def test_queries_of_real_dimension_follow_the_row_formula():
    rng = np.random.default_rng(3)
    q, k = rng.normal(size=64), rng.normal(size=(400, 500, 64))
    h = entropy(k @ q / 8)
    within_four_errors(h, g.expected_entropy(500, init.row_spread(q, 1.0, 1 / 8)))


def test_arrays_equal_scalars():
    n, x = np.array([1, 2, 100])[:, None], np.array([0.0, 0.5, 3.0])
    for f in (
        g.expected_entropy,
        g.expected_log_partition,
        g.expected_collision,
        g.entropy_limit,
        g.expected_deficit,
    ):
        np.testing.assert_array_equal(f(n, x), [[f(m, a) for a in x] for m in n[:, 0]])
    np.testing.assert_array_equal(
        g.scale_for_entropy(100, x), [g.scale_for_entropy(100, h) for h in x]
    )
    many = np.array([1.0, 2.0, 1e6])
    np.testing.assert_allclose(g.expected_max(many), [g.expected_max(m) for m in many], rtol=1e-14)
    np.testing.assert_array_equal(g.entropy_rule(x, 4, 9), [g.entropy_rule(a, 4, 9) for a in x])
    np.testing.assert_array_equal(
        g.planted_mass(x, 10, 2.0), [g.planted_mass(a, 10, 2.0) for a in x]
    )
    m = np.array([0.0, 0.3, 0.9, 1.0])
    np.testing.assert_array_equal(g.frozen_entropy(m), [g.frozen_entropy(a) for a in m])


def test_a_call_takes_milliseconds():
    moments.cache_clear()
    start = time.process_time()
    for x in (0.3, 2.0, 12.0, 50.0):
        moments(1e12, x)
    assert time.process_time() - start < 0.4
