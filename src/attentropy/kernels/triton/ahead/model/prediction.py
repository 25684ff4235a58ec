"""Predict the speed of the kernels beside plain flash attention: compiled, never timed.

Both come from the same compiler and run on the same model, so that their ratio says more than
either of them: `docs/gpu.md` has what is known of the model's error.
"""

from dataclasses import dataclass
from functools import cache

import torch

from attentropy.core.errors import ArgumentError
from attentropy.core.results import COMPUTED
from attentropy.kernels.triton.ahead.cases import (
    DTYPES,
    LENGTH,
    CompiledCase,
    launch_of,
    problem,
)
from attentropy.kernels.triton.ahead.compiling import ProgramUsage, compile_for, disassembled
from attentropy.kernels.triton.ahead.model import plain
from attentropy.kernels.triton.ahead.model.cards import CARDS
from attentropy.kernels.triton.ahead.model.figures import Figures, TurnWork, figures
from attentropy.kernels.triton.ahead.model.sass import parse
from attentropy.kernels.triton.ahead.model.sticks import LADEN_STICKS, STICKS
from attentropy.kernels.triton.configs import INTERPRETED, WIDTHS, TileSizes
from attentropy.kernels.triton.launch import Launch
from attentropy.kernels.triton.measured import best_sizes
from attentropy.kernels.triton.plan_forward import wanted_of

PRODUCTS = {"forward": 2, "queries": 3, "keys": 4}
"""Matrix products of a sweep, each of D multiply-adds per pair."""
# a float32 product is three of tf32, which run at half the rate of bfloat16
TRIPLE = 3

REPORTED = (
    "kernel", "arch", "width", "dtype", "percent", "plain_percent", "ratio", "waste", "wgmma",
    "registers", "spilled",
)  # fmt: skip
PAIRS = {"float bias": torch.float32, "bool mask": torch.bool}
"""What features read for every pair; the plain kernel beside them reads the same."""


@dataclass(frozen=True, kw_only=True)
class SpeedPrediction:
    """What the model says of one kernel, predicted and not timed.

    Attributes:
        kernel: "forward", "queries" (dq) or "keys" (dk and dv).
        arch: "sm_80" (A100) or "sm_90" (H100).
        width: of the heads.
        dtype: of the inputs.
        tiles: block x tile, warps, stages.
        percent: of the peak of the tensor cores; causal attention and all statistics if not asked
            otherwise.
        plain_percent: that of plain flash attention without statistics, which reads what the
            kernel reads.
        ratio: percent / plain_percent.
        limit: the unit that would be busy longest.
        per_pair: instructions that a pair of query and key takes of a thread.
        waste: products issued over products needed.
        wgmma: whether products are those of sm_90's warp groups.
        registers: of a thread.
        spilled: bytes of a thread that lie in memory in place of registers.
        programs: that a multiprocessor holds at once.
    """

    kernel: str
    arch: str
    width: int
    dtype: str
    tiles: str
    percent: float
    plain_percent: float
    ratio: float
    limit: str
    per_pair: float
    waste: float
    wgmma: bool
    registers: int
    spilled: int
    programs: int

    def as_dict(self) -> dict[str, object]:
        """The fields of the JSON of `attentropy bench --predict`: REPORTED."""
        return {name: getattr(self, name) for name in REPORTED}


def predict(
    kernel: str,
    *,
    arch: int,
    width: int,
    dtype: str = "bfloat16",
    tiles: TileSizes | None = None,
    asked: frozenset[str] = COMPUTED,
    feature: str = "causal",
) -> SpeedPrediction:
    """Predict one kernel.

    Args:
        kernel: "forward", "queries" or "keys".
        arch: 80 or 90.
        width: of the heads.
        dtype: of the inputs.
        tiles: those that the kernel would have on such a card if not given.
        asked: the statistics that the forward pass computes.
        feature: what the call has, a name of `cases.FEATURES`.
    """
    check(arch=arch, width=width, dtype=dtype)
    padded = min(n for n in WIDTHS if n >= width)
    precise = dtype == "float32"
    tiles = tiles or usual_tiles(
        CompiledCase(kernel, width, dtype, INTERPRETED, feature), arch=arch, asked=asked
    )
    launch = launch_of(CompiledCase(kernel, width, dtype, tiles, feature), asked=asked)
    used, found = figures_of(launch, kernel=kernel, width=width, arch=arch, precise=precise)
    stick = plain_figures(kernel, arch, padded, dtype, PAIRS.get(feature))
    share = width / padded  # a plain kernel pads too
    return SpeedPrediction(
        kernel=kernel,
        arch=f"sm_{arch}",
        width=width,
        dtype=dtype,
        tiles=f"{tiles.block} x {tiles.tile}, {tiles.warps} warps, {tiles.stages} stages",
        percent=round(found.percent, 1),
        plain_percent=round(stick.percent * share, 1),
        ratio=round(found.percent / (stick.percent * share), 2),
        limit=found.limit,
        per_pair=round(found.per_pair, 1),
        waste=round(found.waste, 2),
        wgmma=found.wgmma,
        registers=used.registers,
        spilled=used.spilled,
        programs=found.programs,
    )


def usual_tiles(case: CompiledCase, *, arch: int, asked: frozenset[str]) -> TileSizes:
    """The tile sizes that a case has on a card, in place of its own.

    Args:
        case: kernel, width, dtype and feature.
        arch: compute capability of the card.
        asked: the statistics that the forward pass computes.
    """
    made = problem(case)
    bare = case.kernel == "forward" and not wanted_of(asked)
    return best_sizes(
        "bare forward" if bare else case.kernel, arch=arch, width=made.width,
        precise=made.precise, laden=made.laden,
    )  # fmt: skip


def check(*, arch: int, width: int, dtype: str) -> None:
    """Raise unless the model knows the card, the width and the dtype.

    Args:
        arch: compute capability.
        width: of the heads.
        dtype: of the inputs.
    """
    if arch not in CARDS:
        raise ArgumentError("predict", f"names out of {[f'sm_{n}' for n in CARDS]}", f"sm_{arch}")
    if not 1 <= width <= WIDTHS[-1]:
        raise ArgumentError("widths", f"between 1 and {WIDTHS[-1]}", width)
    if dtype not in DTYPES:
        raise ArgumentError("dtypes", f"names out of {list(DTYPES)}", repr(dtype))


def figures_of(
    launch: Launch, *, kernel: str, width: int, arch: int, precise: bool = False
) -> tuple[ProgramUsage, Figures]:
    """Compile a launch and run its loop on the model of a card.

    Args:
        launch: of one sweep.
        kernel: "forward", "queries" or "keys".
        width: of the heads.
        arch: 80 or 90.
        precise: whether products are those of float32.
    """
    used = compile_for(launch, arch)
    work = TurnWork(
        pairs=launch.tiles.block * launch.tiles.tile,
        products=PRODUCTS[kernel] * width * (TRIPLE if precise else 1),
        warps=used.threads // 32,
        registers=used.registers,
        shared=used.shared,
    )
    return used, figures(parse(disassembled(used.cubin)), CARDS[arch], work)


@cache
def plain_figures(
    kernel: str, arch: int, width: int, dtype: str, pairs: torch.dtype | None = None
) -> Figures:
    """What the model says of plain flash attention.

    Args:
        kernel: "forward", "queries" or "keys".
        arch: 80 or 90.
        width: of the heads, a power of two.
        dtype: of the inputs.
        pairs: of what is read for every pair, if anything is.
    """
    tiles = (STICKS if pairs is None else LADEN_STICKS)[dtype == "float32"][kernel][arch][width]
    launch = plain_launch(kernel, width, DTYPES[dtype], tiles, pairs)
    return figures_of(launch, kernel=kernel, width=width, arch=arch)[1]


def plain_launch(
    kernel: str, width: int, dtype: torch.dtype, tiles: TileSizes, pairs: torch.dtype | None = None
) -> Launch:
    """Plain flash attention of 128 heads: the launch of one sweep.

    Args:
        kernel: "forward", "queries" or "keys".
        width: of the heads, a power of two.
        dtype: of the inputs.
        tiles: of the sweep.
        pairs: of what is read for every pair, if anything is.
    """
    heads, length = 128, LENGTH
    x = torch.empty(heads, length, width, dtype=dtype, device="meta")
    row = torch.empty(heads, length, device="meta")
    args: dict[str, object] = {"q": x, "k": x, "v": x, "lse": row, "length": length, "WIDTH": width}
    args["pairs"] = pairs and torch.empty(length, length, dtype=pairs, device="meta")
    if kernel == "forward":
        args |= {"out": x, "scale": 0.125}
    else:
        args |= {"dout": x, "delta": row}
        args |= {"dq": x} if kernel == "queries" else {"dk": x, "dv": x}
    function = getattr(plain, kernel)
    return Launch(kernel=function, args=args, programs=lambda n: length // n, tiles=tiles)
