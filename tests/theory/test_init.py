import re

import numpy as np
import pytest

from attentropy.theory import init


@pytest.mark.parametrize("scheme", init.SCHEMES)
def test_gains_against_random_matrices(scheme):
    rng = np.random.default_rng(0)
    d_in, d_out = 96, 24
    std = np.sqrt(init.weight_variance(scheme, d_in, d_out))
    w_q, w_k = std * rng.normal(size=(2, 60, d_in, d_out))
    x, y = rng.normal(size=(2, 60, 50, d_in))
    gains = init.gains(scheme, d_in, d_out)
    q, k = x @ w_q, y @ w_k
    assert q.var() == pytest.approx(gains.forward, rel=0.03)
    back = rng.normal(size=(60, 50, d_out)) @ np.swapaxes(w_q, 1, 2)
    assert back.var() == pytest.approx(gains.backward, rel=0.03)
    scores = q @ np.swapaxes(k, 1, 2) / np.sqrt(d_out)
    assert scores.var() == pytest.approx(gains.score, rel=0.08)


def test_weight_variances():
    wanted = {
        "xavier": 2 / 576,
        "lecun": 1 / 512,
        "he": 2 / 512,
        "packed": 2 / 2048,
        "gpt2": 0.02**2,
    }
    got = {scheme: init.weight_variance(scheme, 512, 64) for scheme in init.SCHEMES}
    assert got == pytest.approx(wanted, rel=1e-15)


def test_xavier_is_neutral_only_for_square_matrices():
    assert init.xavier_gain(512, 512) == (1, 1, 1)
    assert init.xavier_gain(512, 64) == init.gains("xavier", 512, 64)
    assert init.head_dim_choices(8) == [
        (1, 8, 1.0),
        (2, 4, pytest.approx(16 / 9)),
        (4, 2, pytest.approx(2.56)),
        (8, 1, pytest.approx((16 / 9) ** 2)),
    ]


def test_score_variance_counts_means():
    rng = np.random.default_rng(1)
    q, k = 0.5 + 1.5 * rng.normal(size=(2, 200000, 8))
    assert (q * k).sum(-1).var() == pytest.approx(
        init.score_variance(8, 1.5, 0.5, scale=1.0), rel=0.02
    )
    assert init.score_variance(64, 1.0) == 1
    assert init.row_spread([3.0, 4.0], 2.0, 0.5) == 5


def test_spectra():
    rng = np.random.default_rng(2)
    a, b = rng.normal(size=(2, 30, 5))
    full = np.linalg.svd(a @ b.T, compute_uv=False)
    np.testing.assert_allclose(init.score_matrix_spectrum(a, b), full[:5], rtol=1e-10)
    assert full[5] < 1e-10
    assert init.effective_rank(np.eye(7)) == pytest.approx(7)
    assert init.effective_rank(np.ones((7, 7))) == pytest.approx(1)
    assert init.effective_rank(np.zeros((2, 2))) == init.stable_rank(np.zeros((2, 2))) == 0
    assert init.stable_rank(np.diag([2.0, 1.0])) == 1.25
    s = init.singular_values(0.1 * rng.normal(size=(400, 100)))
    low, high = init.marchenko_pastur_edges(400, 100, 0.01)
    assert low * 0.93 < s.min() < s.max() < high * 1.05


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: init.weight_variance("magic", 2, 2), "scheme must be one of xavier"),
        (lambda: init.xavier_gain(0, 5), "d_in must be finite and >= 1, got 0"),
        (lambda: init.singular_values([1.0]), "matrix must be two-dimensional"),
        (lambda: init.score_matrix_spectrum(np.eye(3), np.eye(2)), "w_k must be"),
        (lambda: init.score_variance(4, -1.0), "sigma must be finite and >= 0"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call()
