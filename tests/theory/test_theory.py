"""The theory needs numpy and scipy only; the proof is itself tested."""

import subprocess
import sys

import pytest

CHECK = """
import sys
import attentropy.{module}
{extra}
heavy = [name for name in ("torch", "matplotlib", "transformers") if name in sys.modules]
sys.exit(",".join(heavy) or 0)
"""


def run(module, extra=""):
    code = CHECK.format(module=module, extra=extra)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("module", ["theory.catalogue", "lab.claims"])
def test_no_torch(module):
    done = run(module)
    assert done.returncode == 0, done.stderr


def test_the_check_would_notice():
    assert run("theory.bounds", "sys.modules['torch'] = sys").stderr.strip() == "torch"


def test_names_are_listed_and_unknown_ones_refused():
    from attentropy import theory

    assert {"CATALOGUE", "gaussian"} <= set(dir(theory))
    assert theory.gaussian.expected_entropy(1, 1.0) == 0
    with pytest.raises(AttributeError, match="no attribute 'alchemy'"):
        _ = theory.alchemy
