"""Examples in the docstrings of modules and analysis are true."""

import doctest
import importlib

import pytest

MODULES = [
    "nn.scales.adaptive",
    "nn.init",
    "nn.layers.invariant",
    "nn.losses",
    "nn.layers.multihead",
    "nn.positions.rotary",
    "analysis.spectrum",
    "analysis.temperature",
]


@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name):
    module = importlib.import_module(f"attentropy.{name}")
    failed, attempted = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert attempted
    assert not failed
