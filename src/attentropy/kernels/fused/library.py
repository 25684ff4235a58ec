"""Which compiled kernel serves this machine: chosen from the CPU's flags, loaded once, or why none.

`ATTENTROPY_ISA` (avx2, avx512, avx512bf16; on ARM neon, neonbf16) asks for one instruction set
instead of the best.
"""

import ctypes
import os
import platform
import sys
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from attentropy.kernels.fused.build import ISAS, SUFFIX, interface, path_of
from attentropy.kernels.fused.cpu import cpu_flags

_WHERE = "needs a Linux x86-64 CPU with AVX2 and FMA, or an ARM64 CPU under Linux or macOS"
_RENEWS = "python -m attentropy.kernels.fused.build"
_AVX512 = {"avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl"}
_NEEDS = {  # names of cpu_flags()
    "avx2": {"avx2", "fma"},
    "avx512": _AVX512,
    "avx512bf16": _AVX512 | {"avx512_bf16"},
    "neon": {"asimd"},
    "neonbf16": {"asimd", "bf16"},
}


@dataclass(frozen=True)
class Library:
    """A loaded library.

    Attributes:
        isa: the instruction set that it was compiled for.
        path: its file.
        handle: what ctypes loaded.
    """

    isa: str
    path: Path
    handle: Any = field(repr=False)

    @property
    def bf16(self) -> bool:
        """Whether bf16 is multiplied as it is, not by conversion to float32."""
        return self.isa in {"avx512bf16", "neonbf16"}

    def forward(self, block: bytes) -> None:
        """Run the forward pass on a block of arguments; the GIL is released meanwhile.

        Args:
            block: what attentropy.kernels.fused.block makes.
        """
        self.handle.attentropy_forward(block)

    def backward(self, block: bytes) -> None:
        """Run the backward pass on a block of arguments; the GIL is released meanwhile.

        Args:
            block: what attentropy.kernels.fused.block makes.
        """
        self.handle.attentropy_backward(block)

    def summary(self, block: bytes, summary: bytes) -> None:
        """Sum over the rows of a call; the GIL is released meanwhile.

        Args:
            block: that of the forward pass.
            summary: what is summed and where, a struct Summary.
        """
        self.handle.attentropy_summary(block, summary)

    def planned_forward(self, args: bytes, places: bytes) -> None:
        """Run the forward pass of a plan.

        Args:
            args: struct Args without addresses.
            places: struct Places.
        """
        self.handle.attentropy_planned_forward(args, places)

    def planned_backward(self, args: bytes, places: bytes) -> None:
        """Run the backward pass of a plan.

        Args:
            args: struct Args without addresses.
            places: struct Places.
        """
        self.handle.attentropy_planned_backward(args, places)

    def peak(self) -> float:
        """Float32 operations per second of one thread, multiplying and adding in registers."""
        return float(self.handle.attentropy_peak())

    def poison(self, on: bool) -> None:
        """Fill scratch memory with NaN before every use, for tests.

        Args:
            on: whether to.
        """
        self.handle.attentropy_poison(int(on))


def runnable() -> list[str]:
    """Instruction sets that this CPU has, best first."""
    return [isa for isa in ISAS if _NEEDS[isa] <= cpu_flags()]


def find(wanted: str | None = None) -> Library | str:
    """The library of the wanted instruction set or of the best, or why there is none.

    Args:
        wanted: an instruction set; the best that runs here if not given.
    """
    if wanted is not None and ISAS and wanted not in ISAS:
        return f"ATTENTROPY_ISA must be one of {', '.join(ISAS)}, got {wanted}"
    able = runnable()
    if not able:
        return f"{_WHERE}; this is {sys.platform} on {platform.machine()}"
    if wanted is not None and wanted not in able:
        return f"ATTENTROPY_ISA asks for {wanted}, which this CPU lacks"
    reasons = []
    for isa in [wanted] if wanted else able:
        found = _load(isa)
        if isinstance(found, Library):
            return found
        reasons.append(found)
    return "; ".join(reasons)


def _load(isa: str) -> Library | str:
    path = path_of(isa)
    if not path.exists():
        return f"{path.name} was not built ({_RENEWS} builds it)"
    try:
        handle = ctypes.CDLL(str(path))
    except OSError as error:
        return f"{path.name} does not load: {error}"
    if _interface_of(handle) != f"attentropy interface {interface()}":
        return (
            f"{path.name} is stale: its struct Args is not that of cpp/args.h ({_RENEWS} renews it)"
        )
    handle.attentropy_peak.restype = ctypes.c_double
    for name in ("forward", "backward"):
        for function, count in ((f"attentropy_{name}", 1), (f"attentropy_planned_{name}", 2)):
            entry = getattr(handle, function)
            entry.argtypes, entry.restype = [ctypes.c_void_p] * count, None
    handle.attentropy_summary.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    handle.attentropy_summary.restype = None
    return Library(isa, path, handle)


def _interface_of(handle: Any) -> str:
    """Which struct Args a library was compiled with; empty for one that does not tell."""
    try:
        told = handle.attentropy_interface
    except AttributeError:
        return ""
    told.restype = ctypes.c_char_p
    return str(told().decode())


class _Pool:
    """The address of torch's parallel_for, or 0 where the library must start its own threads.

    torch exports it since 2.10. A forked child has none of its parent's pool threads and would
    wait for them for ever, so there the library starts threads of its own.
    """

    address = 0

    def __init__(self) -> None:
        import torch

        path = Path(torch.__file__).parent / "lib" / f"libtorch_cpu{SUFFIX}"
        try:
            function = ctypes.CDLL(str(path)).torch_parallel_for
        except (OSError, AttributeError):
            return
        self.address = ctypes.cast(function, ctypes.c_void_p).value or 0
        os.register_at_fork(after_in_child=self.forget)

    def forget(self) -> None:
        self.address = 0


@cache
def pool() -> _Pool:
    """The one `_Pool` of this process."""
    return _Pool()


_found = find(os.environ.get("ATTENTROPY_ISA") or None)
serving = None if isinstance(_found, str) else _found  # the library that serves, if any
missing = _found if isinstance(_found, str) else None  # why none does
