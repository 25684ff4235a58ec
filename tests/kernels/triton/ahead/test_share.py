"""What the statistics add to plain flash attention, as the docs state it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from attentropy.kernels.triton.ahead.share import StatisticsShare, markdown

PAGE = (Path(__file__).parents[4] / "docs" / "gpu.md").read_text()
linux = pytest.mark.skipif(
    sys.platform != "linux", reason="triton brings NVIDIA's tools on Linux only"
)


def run(module):
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", f"attentropy.kernels.triton.ahead.{module}"],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout


@linux
@pytest.mark.slow
def test_the_docs_count_what_the_statistics_add():
    assert run("share").strip() in PAGE


def test_a_row_for_each_width():
    shares = [StatisticsShare(width=64, operations=0.031, instructions=0.2, per_pair=6.25)]
    head, line, row = markdown(shares).splitlines()
    assert head.count("|") == row.count("|") == line.count("|")
    assert row == "| 64 | 2.6% | 3.1% | 20% | 6.2 |"
