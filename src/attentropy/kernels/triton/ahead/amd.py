"""Compile the kernels for AMD's GPUs ahead of time, and read what they take: never run.

python -m attentropy.kernels.triton.ahead.amd     # the table of docs/gpu.md
"""

import re
from dataclasses import dataclass

import triton
from triton.backends.compiler import GPUTarget

from attentropy.kernels.triton.ahead.cases import CompiledCase, launch_of
from attentropy.kernels.triton.ahead.compiling import source_of
from attentropy.kernels.triton.configs import TileSizes
from attentropy.kernels.triton.launch import Launch

ARCHS = ("gfx942", "gfx90a")
KERNELS = ("forward", "queries", "keys")
TILES = TileSizes(64, 32, 4, 1)
WAVE = 64  # threads that run together on these GPUs


@dataclass(frozen=True, kw_only=True)
class WaveUsage:
    """What a program takes: vector registers and those spilled, bytes of LDS, MFMA instructions."""

    kernel: str
    arch: str
    width: int
    registers: int
    spilled: int
    shared: int
    mfma: int


def compile_amd(launch: Launch, arch: str) -> tuple[str, int]:
    """The assembly of a launch for an architecture, and its bytes of LDS."""
    tiles = launch.tiles
    compiled = triton.compile(
        source_of(launch),
        target=GPUTarget("hip", arch, WAVE),
        options={
            "num_warps": tiles.warps, "num_stages": tiles.stages, "enable_fp_fusion": True,
        },
    )  # fmt: skip
    return compiled.asm["amdgcn"], compiled.metadata.shared


def measure(kernel: str, arch: str, width: int) -> WaveUsage:
    """Compile one kernel for one architecture: causal, bfloat16, all statistics."""
    launch = launch_of(CompiledCase(kernel, width, "bfloat16", TILES))
    text, shared = compile_amd(launch, arch)
    return WaveUsage(
        kernel=kernel,
        arch=arch,
        width=width,
        registers=counted(text, "vgpr_count"),
        spilled=counted(text, "vgpr_spill_count"),
        shared=shared,
        mfma=len(re.findall(r"v_mfma", text)),
    )


def counted(text: str, name: str) -> int:
    """A number of the metadata of a kernel."""
    found = re.search(rf"\.{name}:\s+(\d+)", text)
    if found is None:
        raise RuntimeError(f"the assembly does not say its {name}")
    return int(found[1])


def markdown(found: list[WaveUsage]) -> str:
    """A row for each kernel."""
    lines = ["| kernel | arch | width | vector registers | spilled | LDS | MFMA |"]
    lines.append("|---" * 7 + "|")
    for x in found:
        cells = f"{x.registers} | {x.spilled} | {x.shared / 1024:.0f} KB | {x.mfma} |"
        lines.append(f"| {x.kernel} | {x.arch} | {x.width} | {cells}")
    return "\n".join(lines)


if __name__ == "__main__":
    cases = [(k, a, w) for a in ARCHS for w in (64, 128) for k in KERNELS]
    print(markdown([measure(*case) for case in cases]))
