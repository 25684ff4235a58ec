"""Every command of the page on several machines runs as it is written."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.scans.loading.large import write_llama

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "howto" / "several-machines.md"
COMMANDS = re.findall(r"```sh\n(.*?)\n```", PAGE.read_text(), re.DOTALL)


def test_there_are_commands():
    assert len(COMMANDS) == 8


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_it_runs(command, tmp_path):
    folder = tmp_path / "models" / "my-llama"
    folder.mkdir(parents=True)
    write_llama(folder, layers=2, width=32)
    np.save(tmp_path / "ids.npy", np.arange(2000) * 7 % 300)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    bin_folder = str(Path(sys.executable).parent)
    environment = os.environ | {
        "PATH": f"{bin_folder}:{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
    }
    run = subprocess.run(
        command,
        shell=True,
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert run.returncode == 0, run.stderr
