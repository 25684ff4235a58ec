from itertools import chain

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from attentropy.lab.claims.tools import derivative
from attentropy.theory import entropy as e

rows = arrays(float, st.integers(1, 12), elements=st.floats(-50, 50))
shifts = st.floats(-1e3, 1e3)


@given(rows)
def test_entropy_lies_between_nothing_and_log_n(s):
    assert 0 <= e.entropy(s) <= np.log(len(s)) + 1e-12


@given(rows, shifts)
def test_a_common_shift_changes_nothing_but_the_partition(s, shift):
    assert e.entropy(s + shift) == pytest.approx(e.entropy(s), abs=1e-9)
    assert e.logsumexp(s + shift) == pytest.approx(e.logsumexp(s) + shift, abs=1e-9)


@given(rows)
def test_order_does_not_matter(s):
    assert e.entropy(s[::-1]) == pytest.approx(e.entropy(s), rel=1e-12, abs=1e-300)
    assert e.log_collision(s[::-1]) == pytest.approx(e.log_collision(s), rel=1e-12, abs=1e-300)


@given(rows, st.integers(0, 12))
def test_hidden_keys_do_not_count(s, where):
    hidden = np.insert(s, min(where, len(s)), -np.inf)
    assert e.entropy(hidden) == pytest.approx(e.entropy(s), rel=1e-12, abs=1e-300)
    assert e.deficit(hidden) == pytest.approx(e.deficit(s), abs=1e-12)
    assert e.sparsity(hidden, len(s)) == pytest.approx(e.sparsity(s))


@given(rows)
def test_entropy_bounds_collision_and_deficit_completes_it(s):
    assert e.entropy(s) >= -e.log_collision(s) - 1e-12
    assert e.entropy(s) + e.deficit(s) == pytest.approx(np.log(len(s)), abs=1e-10)


@given(rows)
def test_gradients_against_differences(s):
    numeric = derivative(e.entropy, s)
    np.testing.assert_allclose(e.entropy_gradient(s), numeric, atol=1e-7)
    assert abs(e.entropy_gradient(s).sum()) < 1e-12
    numeric = derivative(lambda x: np.log(e.sparsity(x)), s)
    np.testing.assert_allclose(e.log_sparsity_gradient(s), numeric, atol=1e-7)


@given(rows, st.floats(0, 3))
def test_entropy_falls_with_the_scale(s, scale):
    slope = e.scale_derivative(s, scale)
    assert slope <= 0
    assert slope == pytest.approx(
        (e.entropy((scale + 1e-6) * s) - e.entropy(max(scale - 1e-6, 0) * s))
        / (2e-6 if scale > 1e-6 else scale + 1e-6),
        abs=2e-3,
    )


def test_query_gradient_against_differences():
    rng = np.random.default_rng(0)
    q, k = rng.normal(size=4), rng.normal(size=(9, 4))
    numeric = derivative(lambda x: e.entropy(0.6 * k @ x), q)
    np.testing.assert_allclose(e.query_gradient(q, k, 0.6), numeric, atol=1e-8)
    with pytest.raises(ValueError, match="keys must be of shape"):
        e.query_gradient(q, k[:, :2])


def test_rows_of_a_matrix_equal_single_rows():
    s = np.random.default_rng(1).normal(size=(3, 5, 7)) * 4
    s[0, 0, 3] = -np.inf
    for f in (e.entropy, e.logsumexp, e.log_collision, e.sparsity, e.deficit):
        single = [[f(row) for row in block] for block in s]
        np.testing.assert_array_equal(f(s), single)
    for f in (e.softmax, e.entropy_gradient, e.log_sparsity_gradient):
        single = [[f(row) for row in block] for block in s]
        np.testing.assert_array_equal(f(s), single)
    np.testing.assert_array_equal(
        e.scale_derivative(s, 2.0), [[e.scale_derivative(r, 2.0) for r in b] for b in s]
    )


def test_scales_broadcast_over_one_row():
    s, t = np.array([0.3, -1.0, 2.0]), np.array([0.0, 0.5, 2.0])
    np.testing.assert_array_equal(e.scale_derivative(s, t), [e.scale_derivative(s, x) for x in t])


def test_deficit_counts_keys_whose_weight_underflows():
    assert e.deficit([1000.0, 0.0]) == pytest.approx(np.log(2), rel=1e-15)
    assert e.deficit([2000.0, 1000.0, 0.0, -np.inf]) == pytest.approx(np.log(3), rel=1e-15)


def test_kl_from_uniform_keeps_its_digits_near_uniform():
    for h in (1e-8, 1e-5, 0.3, 0.7):
        wanted = float(mpmath.log(mpmath.cosh(mpmath.mpf(h) / 2)))
        assert e.kl_from_uniform([0.0, h]) == pytest.approx(wanted, rel=1e-13)
    assert e.kl_from_uniform([0.0, 3000.0]) == pytest.approx(1500 - np.log(2), rel=1e-15)
    rows = e.kl_from_uniform([[0.0, 1.0], [0.0, -np.inf]])
    assert rows[0] == pytest.approx(np.log(np.cosh(0.5)))
    assert rows[1] == np.inf


@pytest.mark.parametrize("n", [2, 7, 40])
def test_deficit_keeps_its_digits_however_close_to_uniform(n):
    h = 1e-12
    s = np.r_[np.zeros(n), -h]
    # h^2 n/(2 (n+1)^2) to leading order, as mpmath has it in 700 digits
    assert e.deficit(s) == pytest.approx(h * h * n / (2 * (n + 1) ** 2), rel=1e-11)


def test_deficit_keeps_its_digits_near_uniform():
    # mean-zero scores of size h: KL = h^2 (1/4 + 1/4 + 0)/2 ... = Var/2
    h = 1e-8
    assert e.deficit([h, -h]) == pytest.approx(h * h / 2, rel=1e-7)


def test_fisher_metric_and_both_gradients():
    p = np.array([0.2, 0.3, 0.5])
    metric = e.fisher_metric(p)
    np.testing.assert_allclose(metric @ np.ones(3), 0, atol=1e-16)
    np.testing.assert_allclose(
        metric @ e.euclidean_entropy_gradient(p), e.riemannian_entropy_gradient(p), atol=1e-15
    )
    np.testing.assert_allclose(
        e.riemannian_entropy_gradient(p), e.entropy_gradient(np.log(p)), atol=1e-15
    )
    assert e.euclidean_entropy_gradient([1.0, 0.0])[1] == np.inf
    assert e.probability_entropy(p) == pytest.approx(e.entropy(np.log(p)))


def test_the_two_divergences():
    s = np.array([0.4, -1.0, 2.0])
    p = e.softmax(s)
    assert e.kl_to_uniform(s) == pytest.approx((p * np.log(3 * p)).sum())
    assert e.kl_from_uniform(s) == pytest.approx(-(np.log(3 * p)).mean())
    assert e.kl_from_uniform([0.0, -np.inf]) == np.inf


def test_a_row_that_sees_nothing():
    hidden = [-np.inf, -np.inf]
    assert (e.softmax(hidden) == 0).all()
    assert (e.entropy(hidden), e.logsumexp(hidden), e.log_collision(hidden)) == (
        0,
        -np.inf,
        -np.inf,
    )
    assert np.isnan(e.sparsity(hidden))
    assert (e.entropy_gradient(hidden) == 0).all()
    assert e.deficit(hidden) == 0


def test_softmax_of_mixed_rows_is_zero_only_where_nothing_is_seen():
    p = e.softmax([[0.0, -np.inf], [-np.inf, -np.inf]])
    np.testing.assert_array_equal(p, [[1, 0], [0, 0]])


blocks = st.lists(
    st.lists(st.floats(-30, 30) | st.just(-np.inf), max_size=4), min_size=1, max_size=4
)


@given(blocks)
def test_merging_equals_the_whole(parts):
    values = [[float(i + j) for j in range(len(part))] for i, part in enumerate(parts)]
    merged = e.merge_blocks(parts, values)
    whole = e.merge_blocks([list(chain(*parts))], [list(chain(*values))])
    np.testing.assert_allclose(merged, whole, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(
        e.merge_blocks(parts[::-1], values[::-1]), whole, rtol=1e-12, atol=1e-12
    )


def test_geometric_entropy_is_that_of_a_long_decay():
    assert e.geometric_entropy(0.8) == pytest.approx(
        e.entropy(np.log(0.8) * np.arange(400)), rel=1e-12
    )
    np.testing.assert_array_equal(e.geometric_entropy([0.0, 0.5]), [0.0, e.geometric_entropy(0.5)])
