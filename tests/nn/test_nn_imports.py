"""Modules and analysis load nothing heavy before it is needed."""

import subprocess
import sys

import pytest

HEAVY = ("scipy", "transformers", "matplotlib")


def loaded_by(statement):
    code = f"{statement}; import sys; print(*[m for m in {HEAVY} if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return run.stdout.split()


@pytest.mark.parametrize("name", ["attentropy.nn", "attentropy.analysis"])
def test_nothing_heavy(name):
    assert loaded_by(f"import {name}") == []


def test_the_question_can_find_something():
    assert loaded_by("import scipy") == ["scipy"]
