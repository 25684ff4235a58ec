import numpy as np
import pytest

from attentropy.theory import _quadrature as q


@pytest.mark.parametrize("n", [2.0, 30.0, 1e5, 1e12])
@pytest.mark.parametrize("x", [1e-6, 0.2, 0.999, 1.0, 4.0, 11.0, 50.0, 1e3])
def test_a_finer_and_wider_grid_changes_nothing(n, x, monkeypatch):
    q.moments.cache_clear()
    coarse = q.moments(n, x)
    monkeypatch.setattr(q, "_STEP", 0.15)
    monkeypatch.setattr(q, "_NEGLIGIBLE", 55.0)
    q.moments.cache_clear()
    np.testing.assert_allclose(coarse, q.moments(n, x), rtol=1e-11)
    q.moments.cache_clear()


def test_the_two_inner_rules_agree():
    u = np.linspace(-20, 4, 50)
    for x in (0.9, 1.0):
        for a, b in zip(q._inner_direct(u, x), q._inner_gumbel(u, x), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-14)
