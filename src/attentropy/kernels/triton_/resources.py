"""What every configuration takes of the hardware: compiled here, never measured.

    python -m attentropy.kernels.triton_.resources            # all, as JSON lines
    python -m attentropy.kernels.triton_.resources --only forward --width 64 --arch 80

Needs no GPU: triton compiles for sm_80, sm_90 and sm_100 with the tools that it brings along.
TRITON_INTERPRET must not be set.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from attentropy.errors import UnsupportedError
from attentropy.kernels.triton_.compiled import compile_for
from attentropy.kernels.triton_.configs import TABLE, Config
from attentropy.kernels.triton_.launch import Launch
from attentropy.kernels.triton_.mode import interpreting
from attentropy.kernels.triton_.occupancy import PROCESSORS, resident_warps
from attentropy.kernels.triton_.plan_backward import Cotangents, Needs, plan_backward
from attentropy.kernels.triton_.plan_forward import plan_forward
from attentropy.kernels.triton_.problem import Problem
from attentropy.kernels.triton_.sass import instructions, main_loop, operations

LENGTH = 4096
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


@dataclass(frozen=True)
class Case:
    """One kernel with one configuration, on causal attention over 4096 keys."""

    kernel: str
    width: int
    dtype: str
    config: Config


@dataclass(frozen=True)
class Found:
    """What a program takes, and how many of its warps a multiprocessor holds of 64."""

    kernel: str
    width: int
    dtype: str
    name: str
    block: int
    tile: int
    warps: int
    arch: int
    registers: int
    spilled: int
    shared: int
    resident: int


def cases() -> Iterator[Case]:
    """All configurations; `safe` ones once for each kernel that they serve."""
    for dtype in DTYPES:
        for kernel, kinds in TABLE.items():
            served = (
                ("safe forward", "safe queries", "safe keys") if kernel == "safe" else (kernel,)
            )
            for width, choices in kinds[dtype == "float32"].items():
                yield from (Case(k, width, dtype, c) for k in served for c in choices)


def problem(*, width: int, dtype: torch.dtype, queries: int = LENGTH) -> Problem:
    """Causal attention of 32 heads in groups of 4, on tensors that hold nothing."""

    def empty(*shape: int, dtype: torch.dtype = dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    return Problem(
        q=empty(4, 32, queries, width),
        k=empty(4, 8, LENGTH, width),
        v=empty(4, 8, LENGTH, width),
        scale=empty(1, 1, 1, dtype=torch.float32),
        hi=empty(1, 1, queries, dtype=torch.int32),
    )


def launch_of(case: Case, *, stats: bool = True) -> Launch:
    """The launch that the case is about, with gradients of every statistic."""
    queries = 1 if case.kernel == "decode" else LENGTH
    what = problem(width=case.width, dtype=DTYPES[case.dtype], queries=queries)
    ahead, written = plan_forward(what, stats=stats)
    grads = Cotangents(written.out, written.entropy, written.lse, written.collision)
    back, _ = plan_backward(what, written, grads, Needs(False, False, False))
    places = {
        "forward": ahead[0],
        "decode": ahead[0],
        "safe forward": ahead[-1],
        "queries": back[1],
        "keys": back[2],
        "safe queries": back[3],
        "safe keys": back[4],
    }
    return replace(places[case.kernel], choices=(case.config,))


def measure(case: Case, arch: int) -> Found:
    """Compile one case for one architecture."""
    if interpreting():
        raise UnsupportedError("compiling ahead of time needs TRITON_INTERPRET unset")
    taken = compile_for(launch_of(case), case.config, arch)
    config = case.config
    return Found(
        case.kernel, case.width, case.dtype, config.name, config.block, config.tile, config.warps,
        arch, taken.registers, taken.spilled, taken.shared,
        resident_warps(
            arch=arch, registers=taken.registers, shared=taken.shared, warps=taken.threads // 32
        ),
    )  # fmt: skip


def statistics_share(width: int) -> tuple[float, float]:
    """What the statistics add to the loop over whole tiles, as compiled for sm_80.

    Returns the share of arithmetic operations, where a matrix instruction counts by its
    multiply-adds, and the share of arithmetic instructions.
    """
    case = next(c for c in cases() if c.kernel == "forward" and c.width == width)
    with_, without = (
        main_loop(compile_for(launch_of(case, stats=stats), case.config, 80).sass)
        for stats in (True, False)
    )
    return (
        1 - operations(without) / operations(with_),
        1 - instructions(without) / instructions(with_),
    )


def markdown(found: list[Found]) -> str:
    """A table with a row per configuration: registers, shared KB and resident warps."""
    heads = [PROCESSORS[arch].name for arch in PROCESSORS]
    lines = ["| kernel | inputs | width | block x tile, warps | " + " | ".join(heads) + " |"]
    lines.append("|---" * (4 + len(heads)) + "|")
    rows: dict[tuple[str, ...], dict[int, str]] = {}
    for x in found:
        tiles = f"{x.block} x {x.tile}, {x.warps}"
        cell = f"{x.registers} r, {x.shared / 1024:.0f} KB, {x.resident} w"
        if x.spilled:
            cell += f", spills {x.spilled} B"
        rows.setdefault((x.kernel, x.dtype, str(x.width), tiles), {})[x.arch] = cell
    for row, cells in rows.items():
        lines.append(f"| {' | '.join((*row, *(cells.get(arch, '') for arch in PROCESSORS)))} |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """Print one JSON object per kernel, configuration and architecture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", help="a kernel")
    parser.add_argument("--width", type=int, action="append")
    parser.add_argument("--dtype", choices=sorted(DTYPES), action="append")
    parser.add_argument("--arch", type=int, choices=sorted(PROCESSORS), action="append")
    parser.add_argument("--markdown", help="a file of JSON lines to print as a table instead")
    parser.add_argument("--share", action="store_true", help="the share of the statistics instead")
    given = parser.parse_args(arguments)
    if given.markdown:
        lines = Path(given.markdown).read_text().splitlines()
        print(markdown([Found(**json.loads(line)) for line in lines]))
        return
    if given.share:
        for width in given.width or (64, 128):
            share = dict(zip(("operations", "instructions"), statistics_share(width), strict=True))
            print(json.dumps({"width": width, **share}), flush=True)
        return
    for case in cases():
        asked = (given.only, case.kernel), (given.width, case.width), (given.dtype, case.dtype)
        if all(not wanted or is_ in wanted for wanted, is_ in asked):
            for arch in given.arch or PROCESSORS:
                print(json.dumps(asdict(measure(case, arch))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
