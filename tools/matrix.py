"""Runs the tests with the lowest and the newest versions of what pyproject.toml promises.

    python tools/matrix.py                     # both ends, all tests but the slow ones
    python tools/matrix.py lowest tests/core   # one end, and what pytest is given

Each end has an environment of its own in build/matrix. torch comes from $TORCH_INDEX, which has
wheels for the CPU; those on PyPI bring gigabytes of CUDA to Linux. What cannot be had is said.
"""

import os
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
INDEX = os.environ.get("TORCH_INDEX", "https://download.pytorch.org/whl/cpu")
ENDS = ("lowest", "newest")


def lowest(project: dict) -> list[str]:
    """Exact requirements at the lower bounds of what is needed to run, and of transformers."""
    bounds = [*project["dependencies"], *project["optional-dependencies"]["hf"]]
    return [bound.replace(">=", "==") for bound in bounds]


def pins(end: str) -> list[str]:
    """What pip must take at this end of the ranges; without pins it takes the newest.

    Args:
        end: "lowest" or "newest".
    """
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    return lowest(tomllib.loads(text)["project"]) if end == "lowest" else []


def install(end: str, folder: Path) -> str:
    """Make the environment; returns what is missing, or nothing.

    Args:
        end: "lowest" or "newest".
        folder: where the environment goes.
    """
    venv.create(folder, with_pip=True, clear=True)
    constraints = folder / "pins.txt"
    constraints.write_text("\n".join(pins(end)), encoding="utf-8")
    pip = [folder / "bin" / "python", "-m", "pip", "install", "-q", "-c", constraints]
    source = ["--retries", "1", "--timeout", "30", "--index-url", INDEX]
    if subprocess.run([*pip, *source, "torch"], env=_no_other_index(), check=False).returncode:
        wanted = next((pin for pin in pins(end) if pin.startswith("torch")), "the newest torch")
        return f"{wanted} for the CPU was not found at {INDEX} (set TORCH_INDEX)"
    if subprocess.run([*pip, "-e", f"{ROOT}[dev]"], check=False).returncode:
        return "pip could not install attentropy[dev] with " + ", ".join(pins(end))
    return ""


def _no_other_index() -> dict[str, str]:
    """The environment without other places to look: pip would take torch with CUDA there."""
    places = {"PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_INDEX_URL"}
    kept = {name: value for name, value in os.environ.items() if name not in places}
    return kept | {"PIP_CONFIG_FILE": os.devnull}


def run(end: str, arguments: list[str]) -> bool:
    """Install and test one end; prints what was tested, or what is missing.

    Args:
        end: "lowest" or "newest".
        arguments: what pytest is given.
    """
    folder = ROOT / "build" / "matrix" / end
    missing = install(end, folder)
    if missing:
        print(f"{end}: NOT TESTED: {missing}", flush=True)
        return False
    python = folder / "bin" / "python"
    subprocess.run([python, "-m", "attentropy.kernels.fused.build", "--if-changed"], check=True)
    done = subprocess.run([python, "-m", "pytest", "-q", *arguments], cwd=ROOT, check=False)
    print(f"{end}: {'green' if not done.returncode else 'RED'}", flush=True)
    return not done.returncode


def main(arguments: list[str]) -> int:
    """Test the ends that are named, or both.

    Args:
        arguments: ends, then what pytest is given.
    """
    ends = [word for word in arguments if word in ENDS] or list(ENDS)
    rest = [word for word in arguments if word not in ENDS]
    green = [run(end, rest) for end in ends]
    return int(not all(green))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
