import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attentropy.theory import sparsity as s

betas, gammas = st.floats(-1000, 1000), st.floats(1e-6, 1e6)
scales = st.floats(1e-3, 1e3)


@given(betas, gammas, scales)
def test_relu2_and_identity_ignore_scale(beta, gamma, c):
    assert s.relu2(c * beta, c * gamma) == pytest.approx(s.relu2(beta, gamma), rel=1e-6, abs=1e-12)
    assert s.identity(c * beta, c * gamma) == pytest.approx(s.identity(beta, gamma), rel=1e-9)


@given(betas, gammas)
def test_ranges_and_symmetry(beta, gamma):
    assert 0 <= s.relu2(beta, gamma) <= 1
    assert np.sqrt(2 / np.pi) * (1 - 1e-14) <= s.identity(beta, gamma) <= 1
    assert s.identity(beta, gamma) == s.identity(-beta, gamma)
    assert s.log_relu2(beta, gamma) <= 0
    assert s.log_identity(beta, gamma) == pytest.approx(np.log(s.identity(beta, gamma)), abs=1e-15)


@given(st.floats(-200, 200), st.floats(1e-6, 50))
def test_relu2_rises_with_its_ratio(r, step):
    assert s.log_relu2(r + step, 1.0) >= s.log_relu2(r, 1.0) - 1e-14


@given(st.floats(0, 1), st.integers(1, 10**9))
def test_decay_lies_between_its_floor_and_bound(rate, n):
    value = s.decay(rate, n)
    assert n**-0.5 * (1 - 1e-12) <= value <= 1 + 1e-15
    assert value <= s.decay_bound(rate, n) * (1 + 1e-9)


@given(st.floats(0, 0.999), st.floats(0, 0.001), st.integers(2, 1000))
def test_slower_decay_is_less_sparse(rate, step, n):
    assert s.decay(rate + step, n) >= s.decay(rate, n) * (1 - 1e-12)


@pytest.mark.parametrize("joint", [-1.5, 2.0])
def test_branches_of_relu2_meet(joint):
    left, right = (
        s.log_relu2(np.nextafter(joint, -9), 1.0),
        s.log_relu2(np.nextafter(joint, 9), 1.0),
    )
    assert left == pytest.approx(right, rel=1e-13)


def test_limits():
    assert s.relu2(0.0, 3.0) == pytest.approx(6**-0.5, rel=1e-15)
    assert s.log_relu2(-1e4, 1.0) == pytest.approx(
        -1e8 / 4 - np.log(2 * np.pi) / 4 - np.log(6e4) / 2, rel=1e-12
    )
    assert np.isnan(s.relu2(0.0, 0.0))
    assert s.log_exp(5.0, 100.0) == -5000
    assert s.decay_effective_keys(0.9) == pytest.approx(19)
    assert s.decay_effective_keys(1.0) == np.inf
    assert np.isnan(s.linear_iid(0.0, 0.0, [1.0]))
    assert s.linear([1.0], [0.0], [[2.0]]) == 0


@pytest.mark.parametrize(
    ("f", "activation"),
    [(s.relu2, lambda x: np.maximum(x, 0) ** 2), (s.identity, np.abs), (s.exp, np.exp)],
)
def test_against_monte_carlo(f, activation):
    g = np.random.default_rng(0).normal(size=2_000_000)
    a = activation(-0.4 + 0.9 * g)
    assert s.empirical(a) == pytest.approx(f(-0.4, 0.9), rel=5e-3)


def test_linear_is_exact_for_samples():
    rng = np.random.default_rng(1)
    k, q = rng.gamma(1.0, size=(40, 3)), rng.gamma(1.0, size=3)
    assert s.empirical(k @ q) == pytest.approx(
        s.linear(q, k.mean(0), np.cov(k.T, bias=True)), rel=1e-13
    )
    with pytest.raises(ValueError, match="covariance must be"):
        s.linear(q, k.mean(0), np.eye(2))
    with pytest.raises(ValueError, match="positive semidefinite"):
        s.linear(q, k.mean(0), -np.eye(3))


def test_finite_rows_of_exp_follow_the_three_regimes():
    n = 1e6
    edge = np.sqrt(2 * np.log(n))
    assert s.log_exp_finite(n, 1.0) == -0.5
    assert s.log_exp_finite(n, 2 * edge) == pytest.approx(-np.log(n) / 2)
    for joint in (edge / 2, edge):
        assert s.log_exp_finite(n, joint * (1 - 1e-9)) == pytest.approx(
            s.log_exp_finite(n, joint * (1 + 1e-9)), abs=1e-6
        )


def test_arrays_equal_scalars():
    beta, gamma = np.array([-30.0, -1.5, 0.0, 2.0, 1e3])[:, None], np.array([1e-6, 1.0, 40.0])
    for f in (s.relu2, s.log_relu2, s.identity, s.log_identity, s.exp, s.log_exp):
        np.testing.assert_array_equal(
            f(beta, gamma), [[f(b, g) for g in gamma] for b in beta[:, 0]]
        )
    rate, n = np.array([0.0, 0.3, 1.0])[:, None], np.array([1, 7, 10**12])
    for f in (s.decay, s.log_decay, s.decay_bound):
        np.testing.assert_array_equal(f(rate, n), [[f(r, m) for m in n] for r in rate[:, 0]])


def test_empirical_of_nothing_is_undefined():
    assert np.isnan(s.empirical([0.0, 0.0]))
    assert s.empirical([1e-200, 1e-200]) == 1


def test_relu2_where_the_ratio_overflows_when_squared():
    assert s.log_relu2(-1e8, 1e-300) == -np.inf
    assert s.relu2(-1e8, 1e-300) == 0
    below, above = (s.log_relu2(-r, 1.0) / (r * r / 4) for r in (0.999e9, 1.001e9))
    assert below == pytest.approx(above, rel=1e-15)


def test_iid_linear_attention_takes_arrays():
    sigma, mu = np.array([[0.0], [0.5], [3.0]]), np.array([0.1, 2.0])
    got = s.linear_iid(sigma, mu, [1.0, 2.0])
    want = [[s.linear_iid(a, b, [1.0, 2.0]) for b in mu] for a in sigma[:, 0]]
    np.testing.assert_array_equal(got, want)
    with pytest.raises(ValueError, match=r"q must be a vector of at least one entry, got \[\]"):
        s.linear_iid(1.0, 1.0, [])
