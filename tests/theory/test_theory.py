"""The theory needs numpy and scipy only, and every function names an argument that it refuses."""

import inspect
import subprocess
import sys

import numpy as np
import pytest

from attentropy import theory
from attentropy.core.errors import AttentropyError

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
    assert {"CATALOGUE", "gaussian"} <= set(dir(theory))
    assert theory.gaussian.expected_entropy(1, 1.0) == 0
    with pytest.raises(AttributeError, match="no attribute 'alchemy'"):
        _ = theory.alchemy


PLAIN = {
    "n": 16, "d_model": 64, "head_dim": 64, "d_in": 8, "d_out": 8, "d": 8, "rows": 8, "cols": 4,
    "n0": 8, "size": 3, "lengths": [8, 16], "entropy": 1.0, "tau": 0.5, "m": 0.5, "rate": 0.5,
    "rho": 0.1, "b": 0.3, "p": [0.2, 0.3, 0.5], "scores": [1.0, 2.0], "query": [1.0, 2.0],
    "keys": np.eye(2), "v": [1.0], "blocks": [[1.0, 2.0], [3.0]], "values": [1.0, 2.0, 3.0],
    "matrix": np.eye(2), "w_q": np.eye(2), "w_k": np.eye(2), "samples": [0.1, 0.2], "q": [1.0, 2.0],
    "covariance": np.eye(3), "noise": np.zeros((4, 3)), "weights": [0.2, 0.8], "source": "2",
    "target": "2", "variant": "dense", "rule": "log", "scheme": "xavier", "kind": "gaussian",
    "rng": np.random.default_rng(0),
}  # fmt: skip
OWN = {
    "merge_blocks": {"values": [[1.0, 2.0], [3.0]]},
    "ratio_mean": {"covariance": 0.1},
    "linear": {"mu": [1.0, 1.0], "covariance": np.eye(2)},
}
WORDS = {"source", "target", "variant", "rule", "scheme", "kind", "rng", "rules"}


def _functions():
    for module in theory._MODULES[:1] + theory._MODULES[2:]:
        home = getattr(theory, module)
        for name, function in vars(home).items():
            ours = inspect.isfunction(function) and function.__module__ == home.__name__
            if ours and not name.startswith("_") and name != "within_log":
                yield pytest.param(name, function, id=f"{module}.{name}")


@pytest.mark.parametrize(("name", "function"), list(_functions()))
def test_bad_numbers_are_refused_by_name(name, function):
    taken = inspect.signature(function).parameters.values()
    given = {
        p.name: OWN.get(name, {}).get(p.name, PLAIN.get(p.name, 1.0))
        for p in taken
        if p.default is p.empty
    }
    function(**given)
    for argument in set(given) - WORDS:
        for bad in ("x", 1 + 2j, [[1.0], [2.0, 3.0]], object(), np.nan, [1.0, np.nan]):
            with pytest.raises(AttentropyError, match=r"^\w+(, \w+)* must be .*, got "):
                function(**{**given, argument: bad})
