"""The examples in the docstrings print what they say."""

import doctest
from importlib import import_module

import pytest

MODULES = [
    "bounds",
    "cost",
    "entropy",
    "gaussian",
    "init",
    "noise",
    "populations",
    "sparsity",
]


@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name):
    module = import_module(f"attentropy.theory.{name}")
    done = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert done.attempted > 0
    assert done.failed == 0
