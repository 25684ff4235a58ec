"""Compiled for GPUs that are not here: no spill, and at least the occupancy that the docs state."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from attentropy.kernels.triton_.occupancy import resident_warps
from attentropy.kernels.triton_.sass import instructions, main_loop, operations

DOCS = Path(__file__).parents[3] / "docs" / "gpu.md"
STATED_WARPS = 8

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="triton brings NVIDIA's tools on Linux only"
)


def compiled(*arguments):
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    module = "attentropy.kernels.triton_.resources"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", module, *arguments],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return [json.loads(line) for line in done.stdout.splitlines()]


def check(found):
    assert found
    for one in found:
        exempt = one["dtype"] == "float32" and one["width"] == 256  # as the docs state
        assert one["spilled"] == 0 or exempt, one
        assert one["resident"] >= STATED_WARPS, one


def test_the_docs_state_the_occupancy_that_is_checked():
    assert f"at least {STATED_WARPS} resident warps" in DOCS.read_text()
    cells = re.findall(r"\d+ r, \d+ KB, (\d+) w", DOCS.read_text())
    assert len(cells) > 30
    assert min(int(x) for x in cells) >= STATED_WARPS


def test_a_forward_configuration_for_sm_80():
    check(compiled("--only", "forward", "--width", "64", "--dtype", "bfloat16", "--arch", "80"))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("kernel", ["forward", "decode", "queries", "keys"])
def test_every_configuration(kernel, dtype):
    check(compiled("--only", kernel, "--dtype", dtype))


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["safe forward", "safe queries", "safe keys"])
def test_every_safe_configuration(kernel):
    check(compiled("--only", kernel))


@pytest.mark.slow
def test_statistics_are_at_most_four_percent_of_the_arithmetic():
    for found in compiled("--share", "--width", "64", "--width", "128"):
        assert 0 < found["operations"] <= 0.04


def test_refuses_to_compile_in_the_interpreter():
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "attentropy.kernels.triton_.resources", "--only", "forward"],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "needs TRITON_INTERPRET unset" in done.stderr


def test_nvidia_tools_are_there():
    from attentropy.kernels.triton_.compiled import tool

    assert shutil.which(tool("cuobjdump"))


@pytest.mark.parametrize(
    ("taken", "warps"),
    [
        ({"arch": 80, "registers": 255, "shared": 0, "warps": 8}, 8),
        ({"arch": 80, "registers": 128, "shared": 0, "warps": 4}, 16),
        ({"arch": 80, "registers": 32, "shared": 100 * 1024, "warps": 4}, 4),
        ({"arch": 90, "registers": 32, "shared": 100 * 1024, "warps": 4}, 8),
        ({"arch": 80, "registers": 32, "shared": 200 * 1024, "warps": 4}, 0),
        ({"arch": 100, "registers": 16, "shared": 0, "warps": 4}, 64),
    ],
)
def test_resident_warps(taken, warps):
    assert resident_warps(**taken) == warps


def test_counts_the_shortest_loop_that_multiplies_matrices():
    sass = """Function:forward
--:-:-:-:1\tFADD R1, R2, R3;
LBB1:
02:-:-:-:8\tHMMA.16816.F32.BF16 R60, R72.reuse, R40, RZ;
--:-:-:-:1\t@P0 FFMA R1, R2, R3, R4;
--:-:-:-:1\tSHFL.BFLY PT, R1, R2, 0x1, 0x1f;
--:-:-:-:5\t@P1 BRA LBB1;
LBB2:
02:-:-:-:8\tHMMA.16816.F32.BF16 R60, R72.reuse, R40, RZ;
--:-:-:-:1\tFADD R1, R2, R3;
--:-:-:-:1\tFADD R1, R2, R3;
--:-:-:-:1\tFADD R1, R2, R3;
--:-:-:-:5\tBRA LBB2;
LBB3:
--:-:-:-:5\tBRA LBB3;
"""
    loop = main_loop(sass)
    assert loop == ["HMMA", "FFMA", "SHFL", "BRA"]
    assert operations(loop) == 130
    assert instructions(loop) == 2
