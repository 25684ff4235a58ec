"""Examples in docstrings are true."""

import doctest
import importlib

import pytest

MODULES = [
    "core.masks",
    "core.masks.kinds",
    "core.scales",
    "attention.attend",
    "attention.choice",
    "attention.key_mass",
    "lab.embedded.model",
    "lab.claims",
]


@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name):
    module = importlib.import_module(f"attentropy.{name}")
    failed, attempted = doctest.testmod(module)
    assert attempted
    assert not failed
