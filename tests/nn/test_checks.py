"""Checks of arguments return what they accept, and say what they do not."""

import math

import numpy as np
import pytest

import attentropy as at
from attentropy.nn._checks import count, divides, number, parts


def test_what_is_accepted_comes_back_plain():
    assert number("x", np.float32(0.5)) == 0.5
    assert type(number("x", 3)) is float
    assert type(count("x", np.int64(3))) is int
    assert divides("heads", 4, "width", 12) == 4
    parts(score=at.Dot(), scale=0.5, weights=at.Softmax())
    parts()


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (lambda: number("rate", "fast"), "rate must be a number, got 'fast'"),
        (lambda: number("rate", True), "rate must be a number, got True"),
        (lambda: number("rate", math.nan), "rate must be finite, got nan"),
        (lambda: number("rate", 0, above=0.0), "rate must be finite and > 0, got 0"),
        (lambda: count("n", 2.0), "n must be an integer, got 2.0"),
        (lambda: count("n", 0), "n must be >= 1, got 0"),
        (lambda: count("n", 1, least=2), "n must be >= 2, got 1"),
        (lambda: divides("heads", 5, "width", 12), "heads must be a divisor of width = 12, got 5"),
        (lambda: parts(score="dot"), r"score must be Dot\(\)"),
        (lambda: parts(scale="log"), "scale must be a scale rule"),
        (lambda: parts(weights=3), "weights must be a value of"),
    ],
)
def test_what_is_refused(check, message):
    with pytest.raises((ValueError, TypeError), match=message):
        check()
