"""Predictions of the speed model for the GPU kernel: rows of a table, and seconds of a case."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from attentropy.core.errors import ArgumentError
from attentropy.kernels.triton.ahead.cases import PLAIN
from attentropy.kernels.triton.ahead.model.cards import CARDS
from attentropy.kernels.triton.ahead.model.prediction import (
    PRODUCTS,
    SpeedPrediction,
    check,
    predict,
)
from attentropy.lab.bench.contenders import BenchCase
from attentropy.lab.bench.peak import operations


def architectures(names: str) -> list[int]:
    """Compute capabilities of names as in "sm_80,sm_90".

    Args:
        names: separated by commas.

    >>> architectures("sm_80, sm_90")
    [80, 90]
    """
    known = {f"sm_{arch}": arch for arch in CARDS}
    found = [name.strip() for name in names.split(",")]
    for name in found:
        if name not in known:
            raise ArgumentError("predict", f"names out of {list(known)}", repr(name))
    return [known[name] for name in found]


LADEN = ("float bias", "bool mask", "relative bias", "dropout", "softcap")
"""Calls that read, draw or compute something for every pair of query and key."""


def calls(names: str) -> list[str]:
    """Kinds of calls of names as in "causal,float bias"; "all" is causal and every laden one.

    Args:
        names: separated by commas.

    >>> calls("causal, dropout")
    ['causal', 'dropout']
    """
    if names.strip() == "all":
        return [PLAIN, *LADEN]
    known = [PLAIN, *LADEN]
    found = [name.strip() for name in names.split(",")]
    for name in found:
        if name not in known:
            raise ArgumentError("calls", f"all, or names out of {known}", repr(name))
    return found


def whole(numbers: str) -> list[int]:
    """Whole numbers of a text as "64,128".

    Args:
        numbers: separated by commas.
    """
    try:
        return [int(text) for text in numbers.split(",")]
    except ValueError:
        raise ArgumentError("widths", "whole numbers with commas between", repr(numbers)) from None


def planned(
    archs: Sequence[int],
    *,
    widths: Sequence[int],
    dtypes: Sequence[str],
    features: Sequence[str] = (PLAIN,),
) -> list[Callable[[], SpeedPrediction]]:
    """One prediction for each architecture, dtype, width, call and kernel, to be made when called.

    Args:
        archs: compute capabilities.
        widths: of the heads.
        dtypes: names of dtypes.
        features: kinds of calls.
    """
    dtypes = [name.strip() for name in dtypes]
    cases = [(a, d, w) for a in archs for d in dtypes for w in widths]
    for arch, dtype, width in cases:
        check(arch=arch, width=width, dtype=dtype)
    return [
        partial(predict, kernel, arch=arch, width=width, dtype=dtype, feature=feature)
        for arch, dtype, width in cases
        for feature in features
        for kernel in PRODUCTS
    ]


def columns(found: Sequence[SpeedPrediction]) -> Any:
    """Predictions as a rich table.

    Args:
        found: one for each row.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(
        "kernel", "arch", "width", "dtype", "tiles", box=SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    headings = (
        "% of\npeak", "plain\n%", "ratio", "limit", "instr.\n/pair", "waste", "wgmma", "regs",
        "spilled\nB", "programs",
    )  # fmt: skip
    for heading in headings:
        table.add_column(heading, justify="right")
    for x in found:
        table.add_row(
            x.kernel, x.arch, str(x.width), x.dtype, x.tiles, f"{x.percent:.0f}",
            f"{x.plain_percent:.0f}", f"{x.ratio:.2f}", x.limit, f"{x.per_pair:.1f}",
            f"{x.waste:.2f}", "yes" if x.wgmma else "no", str(x.registers), str(x.spilled),
            str(x.programs),
        )  # fmt: skip
    return table


def seconds(case: BenchCase, *, arch: int) -> float | None:
    """Seconds that the model predicts for a case; None for a card or a case that it does not know.

    Args:
        case: shape, precision and mask.
        arch: compute capability of the card.
    """
    dtype = str(case.dtype).removeprefix("torch.")
    if arch not in CARDS or case.queries or dtype == "float32":
        return None
    per_product = operations(case._replace(backward=False)) / 2
    kernels = PRODUCTS if case.backward else {"forward": PRODUCTS["forward"]}
    shares = {k: predict(k, arch=arch, width=case.width, dtype=dtype).percent for k in kernels}
    flops = CARDS[arch].flops
    return sum(100 * kernels[k] * per_product / (shares[k] * flops) for k in kernels)
