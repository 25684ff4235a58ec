"""Start a kernel: with tile sizes tuned on the GPU, or with those of the interpreter."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import triton

from attentropy.kernels.triton.configs import INTERPRETED, TileSizes
from attentropy.kernels.triton.device.mode import interpreting

KEY = ("bucket", "BLOCK_D", "BLOCK_V", "PRECISION")


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A kernel, its arguments, and how many programs it takes at so many rows per program."""

    kernel: Any
    args: dict[str, Any]
    programs: Callable[[int], int]
    choices: tuple[TileSizes, ...]

    def start(self) -> None:
        """Run, tuned over the choices; the interpreter has nothing to tune."""
        if interpreting():
            self.start_with(replace(INTERPRETED, part=self.choices[0].part))
        elif len(self.choices) == 1:
            self.start_with(self.choices[0])
        else:
            self.start_tuned()

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

    def start_tuned(self, bench: Callable[..., Any] | None = None) -> TileSizes:
        """Run with the fastest choice, which is timed once per key and set of features."""
        tuned = tuner(self.kernel, self.choices, features(self.args), bench)
        tuned[lambda meta: (self.programs(meta["BLOCK"]),)](**self.args, enable_fp_fusion=True)
        best = tuned.best_config
        return next(choice for choice in self.choices if _tunable(self.kernel, choice) == best)


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


def features(args: Any) -> tuple[str, ...]:
    """Names of the arguments that are present, those inside bundles too."""
    names = []
    for name, value in args.items():
        if value is not None:
            names.append(name)
        if hasattr(value, "_asdict"):
            names.extend(f"{name}.{inner}" for inner in features(value._asdict()))
    return tuple(names)


@cache
def tuner(
    kernel: Any,
    choices: tuple[TileSizes, ...],
    features: tuple[str, ...],
    bench: Callable[..., Any] | None,
) -> Any:
    """The kernel under Triton's autotuner; a set of features has timings of its own."""
    return triton.autotune(
        configs=[_tunable(kernel, choice) for choice in choices],
        key=[name for name in KEY if name in kernel.arg_names],
        pre_hook=clear,
        do_bench=bench,
    )(kernel)


def clear(args: dict[str, Any], reset_only: bool = False) -> None:
    """Zero what the kernel adds to, before every timed run and before the real one."""
    for name in ("dbias", "drelative"):
        if args.get(name) is not None:
            args[name].ptr.zero_()


def _tunable(kernel: Any, config: TileSizes) -> Any:
    return triton.Config(
        sizes(kernel, config),
        num_warps=config.warps,
        num_stages=config.stages,
        maxnreg=config.registers,
    )
