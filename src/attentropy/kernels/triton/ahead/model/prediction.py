"""Predict the speed of the kernels beside plain flash attention: compiled, never timed.

Both come from the same compiler and run on the same model, so that their ratio says more than
either of them: `docs/gpu.md` has what is known of the model's error.
"""

from dataclasses import dataclass, replace
from functools import cache

import torch

from attentropy.core.errors import ArgumentError
from attentropy.core.results import COMPUTED
from attentropy.kernels.triton.ahead.cases import (
    DTYPES,
    LENGTH,
    PLAIN,
    CompiledCase,
    launch_of,
    problem,
)
from attentropy.kernels.triton.ahead.compiling import ProgramUsage, compile_for
from attentropy.kernels.triton.ahead.model import plain
from attentropy.kernels.triton.ahead.model.cards import CARDS
from attentropy.kernels.triton.ahead.model.figures import Figures, Products, TurnWork
from attentropy.kernels.triton.ahead.model.kept import figures_once
from attentropy.kernels.triton.ahead.model.sticks import LADEN_STICKS, STICKS
from attentropy.kernels.triton.configs import INTERPRETED, WIDTHS, TileSizes
from attentropy.kernels.triton.launch import Launch
from attentropy.kernels.triton.measured import best_sizes
from attentropy.kernels.triton.plan_forward import wanted_of

PRODUCTS = {"forward": 2, "queries": 3, "keys": 4}
"""Matrix products of a sweep, each of D multiply-adds per pair."""
KINDS = {
    None: (Products.HALF, 1),
    "tf32": (Products.TF32, 1),
    "tf32x3": (Products.TF32, 3),
    "ieee": (Products.FLOAT, 1),
}
"""By the precision of tl.dot: which units multiply, and how often for one product."""

REPORTED = (
    "kernel", "arch", "width", "dtype", "percent", "plain_percent", "ratio", "waste", "wgmma",
    "registers", "spilled",
)  # fmt: skip
REACH = 128
PAIRS = {
    "float bias": ((LENGTH, LENGTH), torch.float32),
    "bool mask": ((LENGTH, LENGTH), torch.bool),
    "relative bias": ((2 * REACH + 1,), torch.float32),
}
"""What features read for every pair: shape and dtype; the plain kernel beside them reads the same.

Dropout and a cap of the logits read nothing, so that the plain kernel beside them has neither.
"""


@dataclass(frozen=True, kw_only=True)
class SpeedPrediction:
    """What the model says of one kernel, predicted and not timed.

    Attributes:
        kernel: "forward", "queries" (dq) or "keys" (dk and dv), and what the call has beside
            a causal mask.
        arch: "sm_80" (A100) or "sm_90" (H100).
        width: of the heads.
        dtype: of the inputs.
        tiles: block x tile, warps, stages.
        percent: of the peak of the tensor cores for such inputs; causal attention and all
            statistics if not asked otherwise. A float32 product is three of TF32.
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
    feature: str = PLAIN,
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
    case = CompiledCase(kernel, width, dtype, INTERPRETED, feature)
    tiles = tiles or usual_tiles(case, arch=arch, asked=asked)
    launch = launch_of(replace(case, tiles=tiles), asked=asked)
    used, found = figures_of(launch, kernel=kernel, width=width, arch=arch)
    stick = plain_figures(kernel, arch, padded, dtype, feature)
    share = width / padded  # a plain kernel pads too
    return SpeedPrediction(
        kernel=kernel if feature == PLAIN else f"{kernel} {feature}",
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
    launch: Launch, *, kernel: str, width: int, arch: int
) -> tuple[ProgramUsage, Figures]:
    """Compile a launch and run its loop on the model of a card.

    Args:
        launch: of one sweep.
        kernel: "forward", "queries" or "keys".
        width: of the heads.
        arch: 80 or 90.
    """
    used = compile_for(launch, arch)
    kind, times = KINDS[launch.args["PRECISION"]]
    work = TurnWork(
        pairs=launch.tiles.block * launch.tiles.tile,
        products=PRODUCTS[kernel] * width * times,
        warps=used.threads // 32,
        registers=used.registers,
        shared=used.shared,
        kind=kind,
    )
    return used, figures_once(used.cubin, CARDS[arch], work)


@cache
def plain_figures(
    kernel: str, arch: int, width: int, dtype: str, feature: str = PLAIN, precision: str = "tf32x3"
) -> Figures:
    """What the model says of plain flash attention.

    Args:
        kernel: "forward", "queries" or "keys".
        arch: 80 or 90.
        width: of the heads, a power of two.
        dtype: of the inputs.
        feature: which reads something for every pair, or does not.
        precision: of products of float32.
    """
    sticks = LADEN_STICKS if feature in PAIRS else STICKS
    tiles = sticks[dtype == "float32"][kernel][arch][width]
    launch = plain_launch(kernel, width, dtype, tiles, feature=feature, precision=precision)
    return figures_of(launch, kernel=kernel, width=width, arch=arch)[1]


def plain_launch(
    kernel: str,
    width: int,
    dtype: str,
    tiles: TileSizes,
    *,
    feature: str = PLAIN,
    precision: str = "tf32x3",
) -> Launch:
    """Plain flash attention of 128 heads: the launch of one sweep.

    Args:
        kernel: "forward", "queries" or "keys".
        width: of the heads, a power of two.
        dtype: of the inputs.
        tiles: of the sweep.
        feature: which reads something for every pair, or does not.
        precision: of products of float32.
    """
    heads, length = 128, LENGTH
    x = torch.empty(heads, length, width, dtype=DTYPES[dtype], device="meta")
    row = torch.empty(heads, length, device="meta")
    args: dict[str, object] = {"q": x, "k": x, "v": x, "lse": row, "length": length, "WIDTH": width}
    shape, kind = PAIRS.get(feature, (None, None))
    args["pairs"] = None if shape is None else torch.empty(shape, dtype=kind, device="meta")
    args["REACH"] = REACH if feature == "relative bias" else 0
    args["PRECISION"] = precision if dtype == "float32" else None
    if kernel == "forward":
        args |= {"out": x, "scale": 0.125}
    else:
        args |= {"dout": x, "delta": row}
        args |= {"dq": x} if kernel == "queries" else {"dk": x, "dv": x}
    function = getattr(plain, kernel)
    return Launch(kernel=function, args=args, programs=lambda n: length // n, tiles=tiles)
