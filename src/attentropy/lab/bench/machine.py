"""What is needed to read a timing: processor, threads, versions and date."""

import os
import platform
from datetime import date
from pathlib import Path

import torch

from attentropy._version import __version__


def describe() -> dict[str, str | int]:
    """Date, processor, threads and versions."""
    return {
        "date": date.today().isoformat(),
        "cpu": _processor(),
        "cores": os.cpu_count() or 0,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "attentropy": __version__,
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
