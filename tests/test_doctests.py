"""Examples in docstrings are true."""

import doctest
import importlib

import pytest

MODULES = ["masks", "scales", "attention", "lab.embedded.model"]


@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name):
    module = importlib.import_module(f"attentropy.{name}")
    failed, attempted = doctest.testmod(module)
    assert attempted
    assert not failed
