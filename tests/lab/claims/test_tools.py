import math

import numpy as np
import pytest

from attentropy.lab.claims import tools


def test_streams_are_fixed_and_apart():
    first, second = tools.normals(7, 5, (2, 3))
    assert np.array_equal(first, np.random.default_rng(7).normal(size=5))
    assert np.array_equal(second, np.random.default_rng(8).normal(size=(2, 3)))
    assert tools.generator(3).normal() == tools.generator(3).normal()


def test_products_have_the_variance_of_their_width():
    found = tools.products(tools.generator(), 20_000, 16)
    assert found.shape == (20_000,)
    assert found.var() == pytest.approx(16, rel=0.05)


def test_derivatives_of_a_known_function():
    at = np.array([0.3, -1.2])
    found = tools.derivative(lambda x: np.array([x[0] ** 2 * x[1], math.sin(x[1])]), at)
    want = [[2 * at[0] * at[1], 0.0], [at[0] ** 2, math.cos(at[1])]]
    assert found == pytest.approx(np.array(want), abs=1e-8)


def test_the_jacobian_is_that_of_a_softmax():
    s = np.array([0.2, -0.5, 1.0])

    def softmax(x):
        return np.exp(x) / np.exp(x).sum()

    assert tools.jacobian(softmax(s)) == pytest.approx(tools.derivative(softmax, s), abs=1e-9)


def test_entropies_and_gaps():
    assert tools.row_entropy([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]) == pytest.approx([math.log(2), 0])
    assert tools.gap([1, 2], [1.5, 2]) == 0.5
    assert tools.close(1.0, 1.0 + 1e-10)
    assert not tools.close(1.0, 1.0 + 1e-6)
    assert tools.mean_entropy(0.0, 10) == pytest.approx(math.log(10))


def test_attention_and_expectation():
    assert tools.attend([0.0, math.log(3)], [1.0, 5.0]) == pytest.approx(4.0)
    normal = lambda x: np.exp(-x * x / 2) / math.sqrt(2 * math.pi)  # noqa: E731
    assert tools.expectation(normal, lambda x: x**2) == pytest.approx(1)
    assert tools.deviation([1.0, 3.0], 2.0) == 0
    assert tools.deviation([1.0, 3.0], 1.0) == pytest.approx(math.sqrt(2))
