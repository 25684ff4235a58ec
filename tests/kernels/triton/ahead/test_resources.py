"""Compiled for GPUs that are not here: no spill, and at least the occupancy that the docs state.

The record in docs/gpu_resources.jsonl is checked whole; some of it is compiled again on every run,
all of it under the `slow` mark.
"""

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from attentropy.kernels.triton.ahead import resources
from attentropy.kernels.triton.ahead.cases import FEATURES, cases
from attentropy.kernels.triton.ahead.occupancy import PROCESSORS

DOCS = Path(__file__).parents[4] / "docs"
RECORD = DOCS / "gpu_resources.jsonl"
PAGE = (DOCS / "gpu.md").read_text()
STATED_WARPS = 8

linux = pytest.mark.skipif(
    sys.platform != "linux", reason="triton brings NVIDIA's tools on Linux only"
)


def run(module, *arguments):
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", f"attentropy.kernels.triton.ahead.{module}", *arguments],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout


def compiled(*arguments):
    return [json.loads(line) for line in run("resources", *arguments).splitlines()]


def check(found):
    assert found
    for one in found:
        assert one["spilled"] == 0, one
        assert one["resident"] >= STATED_WARPS, one
        assert one["shared"] <= PROCESSORS[one["arch"]].shared_per_program, one


def test_the_record_is_of_these_kernels_and_complete():
    kernels, found = resources.load(RECORD)
    assert kernels == resources.fingerprint(), "run resources --into docs/gpu_resources.jsonl"
    held = [resources.identity_of(x) for x in found]
    assert len(set(held)) == len(held)
    wanted = {resources.identity(*one) for one in resources.everything()}
    assert set(held) == wanted
    assert f"{len(wanted)} entries" in PAGE


def test_nothing_in_the_record_spills_and_all_of_it_fits():
    check([asdict(x) for x in resources.load(RECORD)[1]])


def test_the_docs_state_the_occupancy_that_is_checked_and_hold_the_tables():
    assert f"at least {STATED_WARPS} resident warps" in PAGE
    for features in (False, True):
        assert resources.markdown(resources.load(RECORD)[1], features=features) in PAGE


def test_a_comment_does_not_change_the_fingerprint_and_code_does(tmp_path, monkeypatch):
    def of(source):
        (tmp_path / "state.py").write_text(source)
        return resources.fingerprint()

    monkeypatch.setattr(resources, "DEVICE", tmp_path)
    monkeypatch.setattr(resources, "KERNELS", ("state",))
    first = of('"""One."""\ndef f(x):\n    """Two."""\n    return x + 1\n')
    assert of("def f(x):\n    # three\n    return x + 1\n") == first
    assert of("def f(x):\n    return x + 2\n") != first


def test_a_record_is_completed_not_repeated(tmp_path, monkeypatch):
    file, asked = tmp_path / "all.jsonl", []

    def measure(case, arch):
        asked.append((case, arch))
        return resources.ProgramResources(*resources.identity(case, arch), 100, 0, 1024, 16)

    monkeypatch.setattr(resources, "measure", measure)
    some = [(case, 80) for case in cases()][:5]
    resources.record(file, some[:3])
    resources.record(file, some)
    assert asked == some
    monkeypatch.setattr(resources, "fingerprint", lambda: "changed")
    resources.record(file, some[:1])
    assert asked == [*some, some[0]]
    assert resources.load(file)[0] == "changed"


@linux
def test_some_are_compiled_again():
    here = compiled("--only", "forward", "--width", "64", "--dtype", "bfloat16", "--arch", "80",
                    "--feature", "causal", "--feature", "softcap")  # fmt: skip
    here += compiled("--only", "keys", "--feature", "dropout", "--arch", "80")
    assert len(here) == 4
    check(here)


@linux
@pytest.mark.slow
@pytest.mark.parametrize("feature", ["causal", *FEATURES])
def test_all_are_compiled_again(feature):
    check(compiled("--feature", feature))


def test_refuses_to_compile_in_the_interpreter():
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "attentropy.kernels.triton.ahead.resources", "--only", "forward"],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "needs TRITON_INTERPRET unset" in done.stderr
