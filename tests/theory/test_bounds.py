import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from attentropy.theory import bounds
from attentropy.theory.entropy import deficit, entropy, softmax

rows = arrays(float, st.integers(2, 15), elements=st.floats(-20, 20))
ranges = st.floats(0, 500)


@given(rows)
def test_no_row_beats_the_worst_deficit(s):
    r = np.ptp(s)
    assert deficit(s) <= bounds.worst_deficit(r) + 1e-12
    assert entropy(s) >= bounds.min_entropy(len(s), r) - 1e-12
    assert softmax(s).max() <= bounds.top_probability_bound(len(s), r) + 1e-12


@given(ranges, st.floats(1e-6, 10))
def test_worst_deficit_grows_below_its_quadratic_bound(r, step):
    assert bounds.worst_deficit(r + step) > bounds.worst_deficit(r)
    assert bounds.worst_deficit(r) <= bounds.quadratic_deficit(r)


@given(st.floats(1e-4, 600))
def test_required_range_inverts_the_deficit(r):
    n = 1e300
    h = np.log(n) - bounds.worst_deficit(r)
    if h >= 0 and bounds.worst_deficit(r) > 1e-3:
        assert bounds.required_range(n, h) == pytest.approx(r, rel=1e-9)


@given(st.integers(1, 60), st.floats(0, 12))
def test_minimum_is_the_best_of_all_splits(n, r):
    levels = [entropy(np.where(np.arange(n) < k, r, 0.0)) for k in range(1, n + 1)]
    h, k = bounds.min_entropy_split(n, r)
    assert h == pytest.approx(min(levels), rel=1e-10, abs=1e-300)
    assert levels[int(k) - 1] == pytest.approx(min(levels), rel=1e-10, abs=1e-300)


def test_the_constant_of_unit_cosines():
    assert bounds.worst_deficit(2.0) == pytest.approx(bounds.UNIT_COSINE_DEFICIT, rel=1e-14)
    assert bounds.worst_deficit_at(1.0) == bounds.worst_deficit(2.0)
    assert bounds.worst_split(2.0) == pytest.approx(
        (0.205513187733490, 0.656517642749666), rel=1e-12
    )
    assert bounds.worst_split(0.0) == (0.5, 0.5)
    assert bounds.required_range(7, np.log(7)) == 0


@given(rows, rows)
def test_lipschitz_constants_hold(a, b):
    n = min(len(a), len(b))
    s, e = a[:n], b[:n] / 20
    moved = softmax(s + e) - softmax(s)
    size = {"1": np.abs(e).sum(), "2": np.linalg.norm(e), "inf": np.abs(e).max()}
    shift = {"1": np.abs(moved).sum(), "2": np.linalg.norm(moved), "inf": np.abs(moved).max()}
    for source, target in bounds._LIPSCHITZ:
        limit = bounds.softmax_lipschitz(source, target) * size[source]
        assert shift[target] <= limit * (1 + 1e-9) + 1e-15
    assert shift["1"] <= bounds.softmax_l1_modulus(size["inf"]) + 1e-14


@pytest.mark.parametrize(("source", "target"), list(bounds._LIPSCHITZ))
def test_lipschitz_constants_are_reached(source, target):
    """At p = (1/2, 1/2) along e_1 or (1, -1) the derivative attains the constant."""
    j = np.array([[0.25, -0.25], [-0.25, 0.25]])
    norms = {"1": 1, "2": 2, "inf": np.inf}
    best = max(
        np.linalg.norm(j @ d, norms[target]) / np.linalg.norm(d, norms[source])
        for d in (np.array([1.0, 0.0]), np.array([1.0, -1.0]))
    )
    assert best == pytest.approx(bounds.softmax_lipschitz(source, target))


@given(arrays(float, st.integers(1, 10), elements=st.floats(0.01, 1)))
def test_inf_to_one_norm_against_all_subsets(w):
    p = w / w.sum()
    signs = np.array(np.meshgrid(*[[0, 1]] * len(p))).reshape(len(p), -1).T
    mass = signs @ p
    assert bounds.softmax_inf1_norm(p) == pytest.approx((4 * mass * (1 - mass)).max(), abs=1e-13)


def test_inf_to_one_norm_of_long_rows():
    assert bounds.softmax_inf1_norm(np.full(101, 1 / 101)) == pytest.approx(
        1 - 1 / 101**2, rel=1e-13
    )
    assert bounds.softmax_inf1_norm(np.full(100, 1 / 100)) == pytest.approx(1, rel=1e-13)
    assert bounds.softmax_inf1_norm([1.0]) == 0
    assert bounds.softmax_inf1_norm(softmax(np.random.default_rng(0).normal(size=500))) > 1 - 1e-12


@given(rows)
def test_log_sum_exp_is_between_its_bounds(s):
    low, value, high = bounds.lse_bounds(s)
    assert low <= value + 1e-12
    assert value <= high + 1e-12


def test_score_ranges():
    assert bounds.qk_norm_range(64) == 16
    assert bounds.cosine_score_range(10.0) == 20
    assert bounds.additive_score_bound([1.0, -2.0]) == 3
    assert round(bounds.focus_limit(16.0)) == 204314
    assert bounds.entropy_floor(2, 50.0) == 0
    assert bounds.output_perturbation(2.0, np.inf) == 2
    assert bounds.dominance_error(1, 3.0) == 0
    assert bounds.lse_bounds([0.0, -np.inf]) == (0.0, 0.0, np.log(2))


def test_arrays_equal_scalars():
    r, n = np.array([0.0, 1e-5, 0.3, 2.0, 16.0, 1e4])[:, None], np.array([1, 5, 10**6])
    for f in (bounds.worst_deficit, bounds.focus_limit):
        np.testing.assert_array_equal(f(r), [[f(a)] for a in r[:, 0]])
    for f in (bounds.min_entropy, bounds.entropy_floor, bounds.top_probability_bound):
        np.testing.assert_array_equal(f(n, r), [[f(m, a) for m in n] for a in r[:, 0]])
    h = np.array([0.0, 0.3, 1.1])
    np.testing.assert_allclose(
        bounds.required_range(5, h), [bounds.required_range(5, x) for x in h], rtol=1e-15
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bounds.worst_deficit(-1.0), "range must be >= 0, got -1.0"),
        (lambda: bounds.worst_deficit([1.0, -2.0]), "range must be >= 0, got -2.0"),
        (lambda: bounds.softmax_lipschitz("3", "2"), "source, target must be one of inf->1"),
        (
            lambda: bounds.softmax_lipschitz("2", "2", temperature=0.0),
            "temperature must be finite and > 0",
        ),
        (lambda: bounds.min_entropy(0, 1.0), "n must be finite and >= 1, got 0.0"),
        (lambda: bounds.softmax_inf1_norm([[0.5, 0.5]]), "p must be one vector"),
        (lambda: bounds.qk_norm_range(0), "head_dim must be finite and >= 1"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


@pytest.mark.parametrize("rest", [1e-20, 1e-9, 7.66e-5, 0.3])
def test_inf1_norm_keeps_its_digits_near_one_hot(rest):
    got = bounds.softmax_inf1_norm([1 - rest, rest / 2, rest / 2])
    assert got == pytest.approx(4 * rest * (1 - rest), rel=1e-13)
