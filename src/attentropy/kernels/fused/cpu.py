"""What the CPU of this machine can do: read from Linux or macOS, not guessed from its name."""

import ctypes
import platform
import sys
from functools import cache
from pathlib import Path

_HWCAP = {"asimd": (16, 1 << 1), "bf16": (26, 1 << 14)}  # (entry of the auxiliary vector, bit)
_SYSCTL = {"asimd": b"hw.optional.AdvSIMD", "bf16": b"hw.optional.arm.FEAT_BF16"}


@cache
def cpu_flags() -> frozenset[str]:
    """Instruction sets of this CPU, as Linux names them; empty where none is known."""
    match sys.platform, platform.machine():
        case "linux", "x86_64":
            return _of_cpuinfo(Path("/proc/cpuinfo"))
        case "linux", "aarch64":
            return _of_auxiliary_vector()
        case "darwin", "arm64":
            return _of_sysctl()
    return frozenset()


def _of_cpuinfo(path: Path) -> frozenset[str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return frozenset()
    flags = next((line for line in lines if line.startswith("flags")), "")
    return frozenset(flags.partition(":")[2].split())


def _of_auxiliary_vector() -> frozenset[str]:
    """From the kernel itself: /proc/cpuinfo is that of the host under emulation."""
    getauxval = ctypes.CDLL(None).getauxval
    getauxval.argtypes, getauxval.restype = [ctypes.c_ulong], ctypes.c_ulong
    return frozenset(name for name, (entry, bit) in _HWCAP.items() if getauxval(entry) & bit)


def _of_sysctl() -> frozenset[str]:
    """NEON is part of every ARM64 Mac; what else there is has a name each."""
    lib = ctypes.CDLL(None)
    found = {"asimd"}
    for flag, name in _SYSCTL.items():
        value, size = ctypes.c_int(0), ctypes.c_size_t(ctypes.sizeof(ctypes.c_int))
        failed = lib.sysctlbyname(name, ctypes.byref(value), ctypes.byref(size), None, 0)
        if not failed and value.value:
            found.add(flag)
    return frozenset(found)
