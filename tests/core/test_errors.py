"""Errors say which argument broke which rule, and are of the types that Python users catch."""

import pytest

from attentropy.core.errors import (
    ArgumentError,
    ArgumentTypeError,
    AttentropyError,
    DistributedError,
    UnsupportedError,
)


@pytest.mark.parametrize(
    ("kind", "base"), [(ArgumentError, ValueError), (ArgumentTypeError, TypeError)]
)
def test_arguments(kind, base):
    error = kind("dropout", "a number in [0, 1)", 1.5)
    assert str(error) == "dropout must be a number in [0, 1), got 1.5"
    assert isinstance(error, base)
    assert isinstance(error, AttentropyError)


@pytest.mark.parametrize(
    ("kind", "base"), [(UnsupportedError, NotImplementedError), (DistributedError, RuntimeError)]
)
def test_sentences(kind, base):
    error = kind("a sentence")
    assert str(error) == "a sentence"
    assert isinstance(error, base)
    assert isinstance(error, AttentropyError)
