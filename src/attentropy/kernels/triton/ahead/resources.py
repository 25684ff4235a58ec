"""What every configuration takes of the hardware: compiled here, never measured.

    python -m attentropy.kernels.triton.ahead.resources --into docs/gpu_resources.jsonl
    python -m attentropy.kernels.triton.ahead.resources --only forward --width 64 --arch 80
    python -m attentropy.kernels.triton.ahead.resources --markdown docs/gpu_resources.jsonl

Needs no GPU: triton compiles for sm_80, sm_90 and sm_100 with the tools that it brings along.
TRITON_INTERPRET must not be set. With --into, what the file holds already is not compiled again,
unless the kernels changed since.
"""

import argparse
import ast
import hashlib
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from attentropy.core.errors import UnsupportedError
from attentropy.kernels.triton.ahead.cases import (
    DTYPES,
    EVERYTHING,
    FEATURES,
    CompiledCase,
    cases,
    launch_of,
)
from attentropy.kernels.triton.ahead.compiling import compile_for
from attentropy.kernels.triton.ahead.occupancy import PROCESSORS, resident_warps
from attentropy.kernels.triton.device.mode import interpreting

DEVICE = Path(__file__).parents[1] / "device"
# the files whose code ends up on the GPU
KERNELS = (
    "coefficients", "decode", "dropout", "forward", "keys", "logits", "queries", "state", "tiles",
    "visibility",
)  # fmt: skip

Identity = tuple[str, int, str, str, str, int, int, int, int, int, int]


@dataclass(frozen=True)
class ProgramResources:
    """What a program takes, and how many of its warps a multiprocessor holds of 64."""

    kernel: str
    width: int
    dtype: str
    feature: str
    name: str
    block: int
    tile: int
    warps: int
    stages: int
    part: int
    arch: int
    registers: int
    spilled: int
    shared: int
    resident: int


def measure(case: CompiledCase, arch: int) -> ProgramResources:
    """Compile one case for one architecture."""
    if interpreting():
        raise UnsupportedError("compiling ahead of time needs TRITON_INTERPRET unset")
    taken = compile_for(launch_of(case), case.config, arch)
    resident = resident_warps(
        arch=arch, registers=taken.registers, shared=taken.shared, warps=taken.threads // 32
    )
    found = taken.registers, taken.spilled, taken.shared, resident
    return ProgramResources(*identity(case, arch), *found)


def identity(case: CompiledCase, arch: int) -> Identity:
    """What tells one record from another: the fields of `ProgramResources` up to `arch`."""
    c = case.config
    sizes = c.name, c.block, c.tile, c.warps, c.stages, c.part
    return case.kernel, case.width, case.dtype, case.feature, *sizes, arch


def identity_of(found: ProgramResources) -> tuple[str | int, ...]:
    """The identity of the case that was compiled."""
    return tuple(asdict(found).values())[:11]


def fingerprint() -> str:
    """Of the code of the kernels; comments, docstrings and imports are left out."""
    whole = hashlib.sha256()
    for name in KERNELS:
        tree = ast.parse((DEVICE / f"{name}.py").read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.Module):
                body = node.body[ast.get_docstring(node) is not None :]
                node.body = [one for one in body if not isinstance(one, ast.ImportFrom)]
        whole.update(ast.dump(tree).encode())
    return whole.hexdigest()[:16]


def load(file: Path) -> tuple[str, list[ProgramResources]]:
    """The fingerprint of the kernels that a file of records is about, and the records."""
    head, *lines = file.read_text().splitlines()
    return json.loads(head)["kernels"], [ProgramResources(**json.loads(line)) for line in lines]


def record(file: Path, wanted: Iterable[tuple[CompiledCase, int]]) -> None:
    """Add to the file what it does not hold yet; start it anew if the kernels changed."""
    held: set[tuple[str | int, ...]] = set()
    if file.exists() and load(file)[0] == fingerprint():
        held = {identity_of(x) for x in load(file)[1]}
    else:
        file.write_text(json.dumps({"kernels": fingerprint()}) + "\n")
    for case, arch in wanted:
        if identity(case, arch) not in held:
            with file.open("a") as out:
                out.write(json.dumps(asdict(measure(case, arch))) + "\n")


def markdown(found: list[ProgramResources], *, features: bool) -> str:
    """A table of registers, shared KB and resident warps: of configurations, or of features."""
    heads = [PROCESSORS[arch].name for arch in PROCESSORS]
    first = ("feature", "kernel") if features else ("kernel", "inputs", "width")
    lines = [f"| {' | '.join((*first, 'block x tile, warps', *heads))} |"]
    lines.append("|---" * (len(first) + 1 + len(heads)) + "|")
    rows: dict[tuple[str, ...], dict[int, str]] = {}
    order: dict[tuple[str | int, ...], int] = {
        identity(*one): place for place, one in enumerate(everything())
    }
    for x in sorted(found, key=lambda x: order[identity_of(x)]):
        if features == (x.feature in FEATURES and x.feature != EVERYTHING):
            laden = "laden " if x.feature == EVERYTHING else ""
            configured = (laden + x.kernel, x.dtype, str(x.width))
            about = (x.feature, x.kernel) if features else configured
            parts = f" by {x.part}" if x.part else ""
            row = (*about, f"{x.block} x {x.tile}{parts}, {x.warps}")
            rows.setdefault(row, {})[x.arch] = _cell(x)
    for row, cells in rows.items():
        lines.append(f"| {' | '.join((*row, *(cells.get(arch, '') for arch in PROCESSORS)))} |")
    return "\n".join(lines)


def _cell(x: ProgramResources) -> str:
    spilled = f", spills {x.spilled} B" if x.spilled else ""
    return f"{x.registers} r, {x.shared / 1024:.0f} KB, {x.resident} w{spilled}"


def everything() -> Iterator[tuple[CompiledCase, int]]:
    """All cases for every architecture."""
    return ((case, arch) for case in cases() for arch in PROCESSORS)


def chosen(given: argparse.Namespace) -> Iterator[tuple[CompiledCase, int]]:
    """The cases and architectures that were asked for."""
    for case, arch in everything():
        asked = (
            (given.only, case.kernel), (given.width, case.width), (given.dtype, case.dtype),
            (given.feature, case.feature), (given.arch, arch),
        )  # fmt: skip
        if all(not wanted or is_ in wanted for wanted, is_ in asked):
            yield case, arch


def main(arguments: list[str] | None = None) -> None:
    """Print one JSON object per kernel, configuration, feature and architecture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", help="a kernel")
    parser.add_argument("--width", type=int, action="append")
    parser.add_argument("--dtype", choices=sorted(DTYPES), action="append")
    parser.add_argument("--feature", choices=["causal", *FEATURES], action="append")
    parser.add_argument("--arch", type=int, choices=sorted(PROCESSORS), action="append")
    parser.add_argument("--into", type=Path, help="a file of records to complete")
    parser.add_argument("--markdown", type=Path, help="a file of records to print as tables")
    given = parser.parse_args(arguments)
    if given.markdown:
        for features in (False, True):
            print(markdown(load(given.markdown)[1], features=features), end="\n\n")
    elif given.into:
        record(given.into, chosen(given))
    else:
        for case, arch in chosen(given):
            print(json.dumps(asdict(measure(case, arch))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
