"""The figures of docs/distributed.md are those that its script prints."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_table_is_what_the_script_prints():
    script = [sys.executable, ROOT / "examples" / "ring_scaling.py"]
    lines = subprocess.run(script, capture_output=True, text=True, check=True).stdout.splitlines()
    text = (ROOT / "docs" / "distributed.md").read_text()
    assert len(lines) > 12
    for line in lines:
        assert line in text


@pytest.mark.slow
def test_training_over_a_ring_gives_the_losses_of_one_process():
    run = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", "2", ROOT / "examples" / "ring_training.py"),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert "losses differ by at most" in run.stdout
