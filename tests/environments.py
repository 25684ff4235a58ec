"""Empty environments to install a build in, cheap because torch is linked and not copied."""

import importlib.metadata
import os
import re
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

from packaging.requirements import Requirement

PACKAGES = Path(sysconfig.get_path("purelib", vars={"base": "", "platbase": ""}).lstrip("/"))
NO_COMPILER = {"PATH": str(Path(sys.executable).parent), "CXX": ""}


def run(*command, **variables):
    """Its standard output; a failure shows what it printed, all of it."""
    left_out = {"PYTHONPATH", "ATTENTROPY_LIBRARIES", "ATTENTROPY_ISA"}
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    done = subprocess.run(
        [str(word) for word in command],
        env=kept | {"OMP_NUM_THREADS": "1"} | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def declared(requirements):
    """Names of the distributions that these requirements bring, extras apart."""
    found, open_ = set(), list(requirements)
    while open_:
        wanted = Requirement(open_.pop())
        name = re.sub(r"[-_.]+", "-", wanted.name).lower()
        if name in found or (wanted.marker and not wanted.marker.evaluate({"extra": ""})):
            continue
        found.add(name)
        open_ += importlib.metadata.requires(name) or []
    return found


def environment(folder, wheel):
    """A new environment that holds the wheel and what it declares to need, and nothing else."""
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", "--python", python]
    run(*pip, "install", "--no-deps", "--no-index", wheel)
    [installed] = importlib.metadata.distributions(path=[str(folder / PACKAGES)])
    for name in declared(installed.requires or []):
        _link(importlib.metadata.distribution(name), folder / PACKAGES)
    return folder


def _link(distribution, target):
    tops = {file.parts[0] for file in distribution.files or [] if file.parts[0] != ".."}
    for top in tops - {"__pycache__"}:
        link = target / top
        if not link.exists():
            link.symlink_to(distribution.locate_file(top))
