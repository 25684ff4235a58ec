"""Compile the fused kernel, one library per instruction set, with one compiler call each.

Run `python -m attentropy.kernels.fused.build` after a change to the C++ files. The build hook of
the package loads this file by its path, so it may import nothing but the standard library.
"""

import os
import platform
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
SOURCE = HERE / "cpp" / "fused.cpp"
LIBRARIES = Path(
    os.environ.get("ATTENTROPY_LIBRARIES", HERE / "_lib")
)  # `make sanitize` has its own

_AVX512 = ["-mavx2", "-mfma", "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl"]
ISAS = {  # fastest first
    "avx512bf16": [*_AVX512, "-mprefer-vector-width=512", "-mavx512bf16"],
    "avx512": [*_AVX512, "-mprefer-vector-width=512"],
    "avx2": ["-mavx2", "-mfma"],
}
_FLAGS = ["-std=c++17", "-O3", "-fPIC", "-shared", "-pthread", "-fvisibility=hidden"]
_WARNINGS = ["-Wall", "-Wextra", "-Wno-psabi", "-Wno-unknown-pragmas"]
_WARNINGS += ["-Wno-uninitialized", "-Wno-maybe-uninitialized"]  # false ones, of GCC's own headers


def compiler() -> list[str] | None:
    """The command in $CXX, else g++ or clang++ if there is one."""
    if os.environ.get("CXX"):
        return shlex.split(os.environ["CXX"])
    found = shutil.which("g++") or shutil.which("clang++")
    return [found] if found else None


def path_of(isa: str) -> Path:
    """Where the library of an instruction set is, or would be."""
    return LIBRARIES / f"fused_{isa}.so"


def build(extra: list[str] | None = None) -> tuple[list[Path], str]:
    """Build what can be built, with `extra` flags; returns the libraries, and what went wrong."""
    if not (sys.platform == "linux" and platform.machine() == "x86_64"):
        return [], f"no fused kernel for {sys.platform} on {platform.machine()}"
    command = compiler()
    if command is None:
        return [], "no C++ compiler: set CXX, or install g++ or clang++"
    LIBRARIES.mkdir(parents=True, exist_ok=True)
    results = [(path_of(isa), _compile(command, isa, extra or [])) for isa in ISAS]
    return [path for path, error in results if not error], "\n".join(e for _, e in results if e)


def _compile(command: list[str], isa: str, extra: list[str]) -> str:
    target = path_of(isa)
    partial = target.with_suffix(f".{os.getpid()}.tmp")  # a running process may hold the old file
    call = [*command, *_FLAGS, *_WARNINGS, *ISAS[isa], *extra, str(SOURCE), "-o", str(partial)]
    try:
        done = subprocess.run(call, capture_output=True, text=True, check=False)
    except OSError as error:
        return f"{isa}: {error}"
    if done.returncode:
        return f"{isa}: {shlex.join(call)} failed:\n{done.stderr[-2000:]}"
    partial.replace(target)
    return ""


def main() -> int:
    """Build in place and say what came of it."""
    built, problem = build(sys.argv[1:])
    for path in built:
        print(path)
    if problem:
        print(problem, file=sys.stderr)
    return 0 if built else 1


if __name__ == "__main__":
    sys.exit(main())
