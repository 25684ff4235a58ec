"""Every example runs as a script, quietly and to the end."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Long trainings, a model of transformers that writes, several processes.
PROCESSES = {p.stem for p in (ROOT / "examples").glob("*.py") if "torchrun" in p.read_text()}
TRAINING = {"contrastive_temperature", "entropy_floor_classifier", "gumbel_annealing"}
LONG = {"cured_run", "sample_by_entropy"} | TRAINING | PROCESSES - {"ring_training"}
EXAMPLES = [
    pytest.param(path, marks=[pytest.mark.slow] if path.stem in LONG else [], id=path.stem)
    for path in sorted((ROOT / "examples").glob("*.py"))
]


@pytest.mark.parametrize("path", EXAMPLES)
def test_example(path, tmp_path):
    run = subprocess.run(
        [sys.executable, "-W", "error", path],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip()
