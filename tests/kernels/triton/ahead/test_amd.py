"""AMD's GPUs: what is read from the assembly; compiling takes a process without the interpreter."""

import os
import subprocess
import sys

import pytest

from attentropy.kernels.triton.ahead.amd import WaveUsage, counted, markdown

TEXT = "  - .agpr_count:     0\n    .vgpr_count:     226\n    .vgpr_spill_count: 3\n"


def test_numbers_of_the_metadata():
    assert counted(TEXT, "vgpr_count") == 226
    assert counted(TEXT, "vgpr_spill_count") == 3
    with pytest.raises(RuntimeError, match="does not say its sgpr_count"):
        counted(TEXT, "sgpr_count")


def test_a_row_for_each_kernel():
    one = WaveUsage(
        kernel="keys", arch="gfx942", width=64, registers=200, spilled=0, shared=8192, mfma=24
    )
    assert markdown([one, one]).splitlines()[2] == "| keys | gfx942 | 64 | 200 | 0 | 8 KB | 24 |"


@pytest.mark.slow
def test_the_source_compiles_for_amd_with_matrix_instructions():
    program = (
        "from attentropy.kernels.triton.ahead.amd import measure\n"
        "print(min(measure(k, 'gfx90a', 64).mfma for k in ('forward', 'queries', 'keys')))"
    )
    clean = {name: x for name, x in os.environ.items() if name != "TRITON_INTERPRET"}
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=clean
    )
    assert int(run.stdout) > 0
