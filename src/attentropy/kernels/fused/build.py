"""Compile the fused kernel, one library per instruction set, with one compiler call each.

    python -m attentropy.kernels.fused.build                # build all libraries
    python -m attentropy.kernels.fused.build --if-changed   # build those of older sources

A library carries a hash of struct Args and a hash of all that it was compiled from. The build hook
of the package loads this file by its path, so it may import nothing but the standard library.
"""

import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
CPP = HERE / "cpp"
LIBRARIES = Path(
    os.environ.get("ATTENTROPY_LIBRARIES", HERE / "_lib")
)  # `make sanitize` has its own

_AVX512 = ["-mavx2", "-mfma", "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl"]
_X86 = {  # fastest first
    "avx512bf16": [*_AVX512, "-mprefer-vector-width=512", "-mavx512bf16"],
    "avx512": [*_AVX512, "-mprefer-vector-width=512"],
    "avx2": ["-mavx2", "-mfma"],
}
_ARM = {"neonbf16": ["-march=armv8.2-a+bf16"], "neon": ["-march=armv8-a"]}
_MACHINES = {("linux", "x86_64"): _X86, ("linux", "aarch64"): _ARM, ("darwin", "arm64"): _ARM}
ISAS = _MACHINES.get((sys.platform, platform.machine()), {})  # instruction sets and their flags
SUFFIX = ".dylib" if sys.platform == "darwin" else ".so"
_MACOS = "11.0"  # the oldest macOS on ARM, and the oldest that torch's wheels load on
_FLAGS = ["-std=c++17", "-O3", "-fPIC", "-shared", "-pthread", "-fvisibility=hidden"]
_FLAGS += [f"-mmacosx-version-min={_MACOS}"] if sys.platform == "darwin" else []
_WARNINGS = ["-Wall", "-Wextra", "-Wno-psabi", "-Wno-unknown-pragmas"]
_WARNINGS += ["-Wno-uninitialized", "-Wno-maybe-uninitialized"]  # false ones, of GCC's own headers


def compiler() -> list[str] | None:
    """The command in $CXX, else g++ or clang++ if there is one."""
    if os.environ.get("CXX"):
        return shlex.split(os.environ["CXX"])
    found = shutil.which("g++") or shutil.which("clang++")
    return [found] if found else None


def path_of(isa: str) -> Path:
    """Where the library of an instruction set is, or would be.

    Args:
        isa: a key of ISAS.
    """
    return LIBRARIES / f"fused_{isa}{SUFFIX}"


def platform_tag() -> str:
    """The platform of a wheel that holds the libraries: linux_x86_64, macosx_11_0_arm64.

    `auditwheel repair` makes a manylinux tag of the first kind.
    """
    system = f"macosx_{_MACOS.replace('.', '_')}" if sys.platform == "darwin" else sys.platform
    return f"{system}_{platform.machine()}"


def interface() -> str:
    """A hash of struct Args, comments and spaces left out: what Python and C++ must agree on."""
    text = re.sub(r"//.*", "", (CPP / "args.h").read_text(encoding="utf-8"))
    return hashlib.sha256("".join(text.split()).encode()).hexdigest()[:16]


def sources(isa: str) -> str:
    """A hash of all that a library is compiled from: C++ files and flags.

    Args:
        isa: a key of ISAS.
    """
    whole = hashlib.sha256(shlex.join([*_FLAGS, *ISAS[isa]]).encode())
    for path in sorted(CPP.iterdir()):
        whole.update(path.name.encode() + path.read_bytes())
    return whole.hexdigest()[:16]


def is_current(isa: str) -> bool:
    """Whether the library is there, and was compiled from these sources.

    Args:
        isa: a key of ISAS.
    """
    path = path_of(isa)
    return path.exists() and f"attentropy sources {sources(isa)}".encode() in path.read_bytes()


def unable() -> str | None:
    """Why nothing can be compiled here, in words; None if it can."""
    if not ISAS:
        return f"no fused kernel for {sys.platform} on {platform.machine()}"
    if compiler() is None:
        return "no C++ compiler: set CXX, or install g++ or clang++"
    return None


def build(
    extra: list[str] | None = None, *, isas: list[str] | None = None
) -> tuple[list[Path], str]:
    """Build what can be built; returns the libraries, and what went wrong.

    Args:
        extra: more flags of the compiler.
        isas: instruction sets; all of them if not given.
    """
    problem, command = unable(), compiler()
    if problem is not None or command is None:
        return [], problem or ""
    LIBRARIES.mkdir(parents=True, exist_ok=True)
    wanted = list(ISAS) if isas is None else isas
    results = [(path_of(isa), _compile(command, isa, extra or [])) for isa in wanted]
    return [path for path, error in results if not error], "\n".join(e for _, e in results if e)


def _compile(command: list[str], isa: str, extra: list[str]) -> str:
    target = path_of(isa)
    partial = target.with_suffix(f".{os.getpid()}.tmp")  # a running process may hold the old file
    hashes = {"INTERFACE": interface(), "SOURCES": sources(isa)}
    defines = [f'-DATTENTROPY_{name}="{value}"' for name, value in hashes.items()]
    flags = [*_FLAGS, *_WARNINGS, *ISAS[isa], *defines, *extra]
    call = [*command, *flags, str(CPP / "fused.cpp"), "-o", str(partial)]
    try:
        done = subprocess.run(call, capture_output=True, text=True, check=False)
    except OSError as error:
        return f"{isa}: {error}"
    if done.returncode:
        return f"{isa}: {shlex.join(call)} failed:\n{done.stderr[-2000:]}"
    partial.replace(target)
    return ""


def main(arguments: list[str]) -> int:
    """Build in place and print what was built.

    Args:
        arguments: ["--if-changed"], or flags of the compiler.
    """
    if arguments == ["--if-changed"]:
        return _renew()
    built, problem = build(arguments)
    return _told(built, problem, failed=not built)


def _renew() -> int:
    """Build the libraries of older sources; a machine without a compiler is not an error."""
    if unable() is not None:
        return _told([], f"nothing built: {unable()}", failed=False)
    changed = [isa for isa in ISAS if not is_current(isa)]
    built, problem = build(isas=changed)
    return _told(built, problem, failed=bool(problem))


def _told(built: list[Path], problem: str, *, failed: bool) -> int:
    for path in built:
        print(path)
    if problem:
        print(problem, file=sys.stderr)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
