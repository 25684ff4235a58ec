"""Runs the tests with the lowest and the newest versions of what pyproject.toml promises.

    python tools/matrix.py                     # both ends, all tests of `make test` but LEFT_OUT
    python tools/matrix.py lowest tests/core   # one end, and what pytest is given

Each end has an environment of its own in build/matrix, which is kept: a second run tests at once.
torch comes from $TORCH_INDEX, which has wheels for the CPU, or from PyPI where that cannot be
reached: such wheels bring CUDA, 3 to 4 GB to fetch and 7 GB on disk, and run on a CPU all the same.
$LOWEST and $NEWEST are the Pythons of the two ends. uv installs where there is one, else pip. It
says what is not available.
"""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
INDEX = os.environ.get("TORCH_INDEX", "https://download.pytorch.org/whl/cpu")
ENDS = ("lowest", "newest")
# what says nothing of versions: documents, kills, the tree, packaging, types; and browsers
LEFT_OUT = ("docs", "faults", "test_layout.py", "test_release.py", "test_typing.py")


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
    python = os.environ.get(end.upper(), sys.executable)
    if subprocess.run([python, "-m", "venv", "--clear", folder], check=False).returncode:
        return f"{python} makes no environment (set {end.upper()})"
    constraints = folder / "pins.txt"
    constraints.write_text("\n".join(pins(end)), encoding="utf-8")
    pip = [*_installer(folder / "bin" / "python"), "-q", "-c", constraints]
    if not _torch(pip):
        wanted = next((pin for pin in pins(end) if pin.startswith("torch")), "the newest torch")
        return f"{wanted} was found neither at {INDEX} (set TORCH_INDEX) nor at the index of pip"
    if subprocess.run([*pip, "-e", f"{ROOT}[dev]"], check=False).returncode:
        return "pip could not install attentropy[dev] with " + ", ".join(pins(end))
    return ""


def _installer(python: Path) -> list:
    """uv, which finds versions that fit in seconds where pip takes half an hour; else pip."""
    uv = shutil.which("uv")
    if uv is None:
        return [python, "-m", "pip", "install"]
    return [uv, "pip", "install", "--python", python, "--index-strategy", "unsafe-best-match"]


def _torch(pip: list) -> bool:
    """Install torch, for the CPU if it can be had; whether any was."""
    source = ["--index-url", INDEX]
    if not subprocess.run([*pip, *source, "torch"], env=_no_other_index(), check=False).returncode:
        return True
    print(f"no torch at {INDEX}: trying the one with CUDA", flush=True)
    return not subprocess.run([*pip, "torch"], check=False).returncode


def _no_other_index() -> dict[str, str]:
    """The environment without other places to look: pip would take torch with CUDA there."""
    places = {"PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_INDEX_URL"}
    kept = {name: value for name, value in os.environ.items() if name not in places}
    soon = {"PIP_RETRIES": "0", "PIP_TIMEOUT": "30", "UV_HTTP_TIMEOUT": "30"}
    return kept | soon | {"PIP_CONFIG_FILE": os.devnull}


def run(end: str, arguments: list[str]) -> bool:
    """Install and test one end; prints what was tested, or what is missing.

    Args:
        end: "lowest" or "newest".
        arguments: what pytest is given.
    """
    folder = ROOT / "build" / "matrix" / end
    whole = folder / "whole"  # written when everything is installed
    missing = "" if whole.exists() else install(end, folder)
    if missing:
        print(f"{end}: NOT TESTED: {missing}", flush=True)
        return False
    whole.touch()
    python = folder / "bin" / "python"
    subprocess.run([python, "-m", "attentropy.kernels.fused.build", "--if-changed"], check=True)
    print(f"{end}: {_versions(python)}", flush=True)
    chosen = arguments or [f"--ignore=tests/{name}" for name in LEFT_OUT]
    done = subprocess.run(
        [python, "-m", "pytest", "-q", *chosen],
        cwd=ROOT,
        env=os.environ | {"ATTENTROPY_CHROMIUM": "none"},
        check=False,
    )
    print(f"{end}: {'green' if not done.returncode else 'RED'}", flush=True)
    return not done.returncode


def _versions(python: Path) -> str:
    names = ["torch", "numpy", "scipy", "transformers", "triton"]
    says = (
        "import sys; from importlib.metadata import version;"
        f"print('Python', sys.version.split()[0], *(f'{{n}} {{version(n)}}' for n in {names}))"
    )
    return subprocess.run([python, "-c", says], capture_output=True, text=True, check=False).stdout


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
