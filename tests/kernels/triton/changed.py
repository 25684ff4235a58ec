"""Whether kernels have changed since the interpreter tried them whole.

    python -m tests.kernels.triton.changed    # all tests of the interpreter; keeps what passed

Tests marked `interpreter` take two minutes. They run in every `make test` while kernels, these
tests or triton differ from what passed last, and else in the slow tier only.
"""

import importlib.metadata
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

TESTS = Path(__file__).parent
ROOT = TESTS.parents[2]
PASSED = TESTS / "passed.txt"


def digest():
    """Of the sources of kernels and of their tests, and the version of triton."""
    found = sha256(importlib.metadata.version("triton").encode())
    for folder in (ROOT / "src/attentropy/kernels/triton", TESTS):
        for path in sorted(folder.rglob("*.py")):
            if "ahead" not in path.parts:
                found.update(path.relative_to(ROOT).as_posix().encode() + path.read_bytes())
    return found.hexdigest()


def changed():
    """True where something differs from what passed last."""
    try:
        return PASSED.read_text().strip() != digest()
    except (OSError, importlib.metadata.PackageNotFoundError):
        return True


def main():
    """Run all of them, and keep the digest if they pass."""
    now = digest()
    command = [sys.executable, "-m", "pytest", "-q", "-m", "interpreter", str(TESTS)]
    code = subprocess.run(command, check=False).returncode
    if code == 0:
        PASSED.write_text(now + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
