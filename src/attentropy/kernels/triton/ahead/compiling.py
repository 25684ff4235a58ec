"""Compile a launch ahead of time for a GPU that is not there, and read what it takes of it."""

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from attentropy.core.errors import UnsupportedError
from attentropy.kernels.triton.launch import Launch, sizes
from attentropy.kernels.triton.mode import interpreting

POINTERS = {
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.float32: "*fp32",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.bool: "*i1",
    torch.int8: "*i8",
}


@dataclass(frozen=True)
class ProgramUsage:
    """What one program takes: registers and bytes spilled per thread, bytes of shared memory."""

    registers: int
    spilled: int
    shared: int
    threads: int
    cubin: bytes


def compile_for(launch: Launch, arch: int) -> ProgramUsage:
    """Compile for compute capability `arch` (80, 90, 100), as the launch would at run time."""
    if interpreting():
        raise UnsupportedError("compiling ahead of time needs TRITON_INTERPRET unset")
    tiles = launch.tiles
    compiled = triton.compile(
        source_of(launch),
        target=GPUTarget("cuda", arch, 32),
        options={
            "num_warps": tiles.warps, "num_stages": tiles.stages, "maxnreg": tiles.registers,
            "enable_fp_fusion": True,
        },
    )  # fmt: skip
    registers, spilled = usage(compiled.asm["cubin"])
    return ProgramUsage(
        registers=registers,
        spilled=spilled,
        shared=compiled.metadata.shared,
        threads=32 * compiled.metadata.num_warps,
        cubin=compiled.asm["cubin"],
    )


def source_of(launch: Launch) -> ASTSource:
    """A launch as Triton's compiler takes it: the kernel, types and constants."""
    constants: dict[tuple[int, ...], Any] = {}
    aligned: dict[tuple[int, ...], Any] = {}
    given = {**launch.args, **sizes(launch.kernel, launch.tiles)}
    fixed = {p.name for p in launch.kernel.params if p.is_constexpr}
    signature = {
        name: typed(given[name], (place,), constants, aligned, fixed=name in fixed)
        for place, name in enumerate(launch.kernel.arg_names)
    }
    return ASTSource(launch.kernel, signature, constexprs=constants, attrs=aligned)


def typed(
    value: Any,
    place: tuple[int, ...],
    constants: dict[tuple[int, ...], Any],
    aligned: dict[tuple[int, ...], Any],
    *,
    fixed: bool,
) -> Any:
    """The type of an argument in Triton's words; notes constants and multiples of 16 on the way."""
    if isinstance(value, tuple):
        inner = [
            typed(x, (*place, n), constants, aligned, fixed=fixed) for n, x in enumerate(value)
        ]
        return type(value)(*inner)
    if fixed or value is None or (type(value) is int and value == 1):
        constants[place] = value
        return "constexpr"
    if isinstance(value, Tensor) or (type(value) is int and value % 16 == 0):
        aligned[place] = [["tt.divisibility", 16]]
    if isinstance(value, Tensor):
        return POINTERS[value.dtype]
    if isinstance(value, float):
        return "fp32"
    return "i32" if -(2**31) <= value < 2**31 else "i64"


def usage(cubin: bytes) -> tuple[int, int]:
    """Registers per thread, and bytes of stack and local memory per thread."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run(
            [tool("cuobjdump"), "-res-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+) .*LOCAL:(\d+)", text)
    if found is None:
        raise RuntimeError(f"cuobjdump did not report registers: {text}")
    return int(found[1]), int(found[2]) + int(found[3])


def disassembled(cubin: bytes) -> str:
    """The machine code of a compiled kernel with its control words, as text."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [tool("nvdisasm"), "-hex", "-c", file.name]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def tool(name: str) -> str:
    """A CUDA tool that comes with triton."""
    return str(Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name)
