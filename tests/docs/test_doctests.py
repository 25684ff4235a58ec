"""Every example in a docstring prints what it says; modules with examples are found by reading."""

import doctest
from importlib import import_module
from pathlib import Path

import pytest

import attentropy

SOURCE = Path(attentropy.__file__).parent
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def modules():
    """The modules of the package with a line that starts with >>>, by name."""
    for path in sorted(SOURCE.rglob("*.py")):
        if any(line.lstrip().startswith(">>> ") for line in path.read_text().splitlines()):
            parts = path.relative_to(SOURCE.parent).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@pytest.mark.parametrize("name", list(modules()))
def test_docstrings(name):
    failed, attempted = doctest.testmod(import_module(name), optionflags=OPTIONS)
    assert attempted
    assert not failed


def test_modules_are_found_in_every_room():
    rooms = {name.split(".")[1] for name in modules()}
    assert rooms >= {"analysis", "attention", "core", "lab", "nn", "theory", "scans", "training"}
