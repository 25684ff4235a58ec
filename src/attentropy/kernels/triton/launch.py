"""Start a kernel: with the tile sizes of its GPU, or with those of the interpreter."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attentropy.kernels.triton.configs import INTERPRETED, TileSizes
from attentropy.kernels.triton.mode import interpreting


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A kernel, its arguments, and how many programs it takes at so many rows per program."""

    kernel: Any
    args: dict[str, Any]
    programs: Callable[[int], int]
    tiles: TileSizes

    def start(self) -> None:
        """Run with its tile sizes, or with those of the interpreter."""
        part = self.tiles.part
        self.start_with(replace(INTERPRETED, part=part) if interpreting() else self.tiles)

    def start_with(self, config: TileSizes) -> None:
        """Run with these tile sizes."""
        with quiet_numpy():
            self.kernel[(self.programs(config.block),)](
                **self.args,
                **sizes(self.kernel, config),
                num_warps=config.warps,
                num_stages=config.stages,
                maxnreg=config.registers,
                enable_fp_fusion=True,
            )


@contextmanager
def quiet_numpy() -> Iterator[None]:
    """The interpreter computes in numpy, which warns of NaN and inf; a GPU has nothing to warn."""
    if not interpreting():
        yield
        return
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


def sizes(kernel: Any, config: TileSizes) -> dict[str, int]:
    """The tile sizes that the kernel has."""
    named = {"BLOCK": config.block, "TILE": config.tile, "PART": config.part}
    return {name: size for name, size in named.items() if name in kernel.arg_names}
