import math

import numpy as np
import pytest

from attentropy.core.errors import ArgumentError
from attentropy.theory import _arrays as a
from attentropy.theory import bounds, entropy, init, noise, sparsity


@a.elementwise
def root(x):
    a.at_least("x", x, 0)
    return np.sqrt(x)


def test_scalars_in_floats_out():
    assert type(root(4)) is float
    assert type(root(np.float32(4))) is float
    np.testing.assert_array_equal(root([1, 4]), [1, 2])
    assert root("9") == 3
    assert root(x=16) == 4


def test_the_first_offender_is_shown():
    with pytest.raises(ArgumentError, match=r"^x must be finite and >= 0, got -2\.0$"):
        root([1.0, -2.0, -3.0])
    with pytest.raises(ArgumentError, match="got nan"):
        root(float("nan"))


def test_domains():
    with pytest.raises(ArgumentError, match=r"y must be finite and > 1, got 1\.0"):
        a.above("y", np.array(1.0), 1)
    with pytest.raises(ArgumentError, match=r"y must be in \[0, 1\], got 2\.0"):
        a.within("y", np.array(2.0), 0, 1)
    with pytest.raises(ArgumentError, match="y must be finite, got inf"):
        a.finite("y", np.array(np.inf))
    a.at_least("y", np.array(np.inf), 0, finite=False)


def test_rows_and_probabilities():
    with pytest.raises(ArgumentError, match="scores must be a vector"):
        a.scores_array(3.0)
    with pytest.raises(ArgumentError, match=r"scores must be below \+inf"):
        a.scores_array([np.inf])
    with pytest.raises(ArgumentError, match="p must be >= 0, got -0.5"):
        a.probabilities_array([1.5, -0.5])
    with pytest.raises(ArgumentError, match="p must be a vector of probabilities"):
        a.probabilities_array([])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bounds.worst_deficit("wide"), "range must be real numbers, .* got wide"),
        (lambda: init.row_spread([1.0], -1.0, 1.0), "sigma must be finite and >= 0, got -1.0"),
        (lambda: init.row_spread([1.0], 1.0, math.nan), "scale must be finite, got nan"),
        (lambda: entropy.query_gradient([1.0], [[1.0]], None), "scale must be one finite number"),
        (lambda: sparsity.empirical(1.0), "weights must be a vector"),
        (lambda: sparsity.empirical([]), "weights must be a vector"),
        (lambda: noise.simulate([1.0], [1.0, 2.0], [[0.0]]), "values must be of 1 rows"),
        (lambda: noise.simulate([1.0], [1.0], [0.0, 0.0]), r"noise must be \[trials, n\]"),
        (lambda: noise.predict([1.0], ["a"], 0.1), "values must be real numbers"),
    ],
)
def test_what_is_no_number_is_named(call, message):
    with pytest.raises(ArgumentError, match=message):
        call()
