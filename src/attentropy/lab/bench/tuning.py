"""Time tile sizes on a card, and keep the fastest: what `attentropy bench --tune` does."""

import statistics
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from attentropy.core.masks import causal
from attentropy.core.resolve import Options, resolve
from attentropy.kernels.packing import INPUTS
from attentropy.kernels.softmax_results import FLOWING
from attentropy.kernels.triton.configs import TileSizes, tile_sizes
from attentropy.kernels.triton.launch import Launch
from attentropy.kernels.triton.measured import MeasuredTiles
from attentropy.kernels.triton.plan_backward import plan_backward
from attentropy.kernels.triton.plan_forward import plan_forward
from attentropy.kernels.triton.problem import Problem

KERNELS = ("forward", "queries", "keys")
HEADS, LENGTH = 16, 4096
Timer = Callable[[Callable[[], None]], float]


def candidates(kernel: str, *, arch: int, width: int) -> list[TileSizes]:
    """The tile sizes of the table, and their neighbours: other tiles, stages and registers.

    Args:
        kernel: "forward", "queries" or "keys".
        arch: compute capability of the card.
        width: of the heads, a power of two.
    """
    own = tile_sizes(kernel, arch=arch, width=width)
    near = [own]
    near += [replace(own, tile=n) for n in (own.tile // 2, own.tile * 2) if 16 <= n <= 128]
    near += [replace(own, stages=n) for n in (2, 3, 4)]
    near += [replace(own, registers=n) for n in (128, 168, 255)]
    near += [
        replace(own, block=own.block * n // 2, warps=own.warps * n // 2) for n in (1, 4)
        if own.warps * n // 2 in (4, 8) and own.block * n // 2 >= 64
    ]  # fmt: skip
    return list(dict.fromkeys(near))


def launches(width: int, *, device: str = "cuda") -> dict[str, Launch]:
    """The three sweeps over causal attention of HEADS heads in bfloat16, gradients of all results.

    Args:
        width: of the heads.
        device: of the tensors.
    """
    shape = (1, HEADS, LENGTH, width)
    q, k, v = (torch.randn(shape, device=device, dtype=torch.bfloat16) for _ in range(3))
    made = Problem.of(resolve(q, k, v, Options(mask=causal)))
    ahead, written = plan_forward(made)
    for one in ahead:
        one.start()
    grads = {name: torch.randn_like(getattr(written, name)) for name in FLOWING}
    back, _ = plan_backward(made, written, grads, dict.fromkeys(INPUTS, False))
    for one in back:
        one.start()
    sweeps = [one for one in back if "SAFE" in one.args and not one.args["SAFE"]]
    return dict(zip(KERNELS, (ahead[0], *sweeps), strict=True))


def fastest(
    launch: Launch, choices: list[TileSizes], *, timer: Timer, say: Callable[[str], None]
) -> tuple[TileSizes, float]:
    """The fastest of the choices that run, and its milliseconds.

    Args:
        launch: of one sweep.
        choices: tile sizes to try.
        timer: milliseconds of a call.
        say: called with a sentence for each choice.
    """
    found: dict[TileSizes, float] = {}
    for tiles in choices:
        try:
            found[tiles] = timer(lambda tiles=tiles: launch.start_with(tiles))  # type: ignore[misc]
            say(f"{launch.kernel.__name__} {tiles}: {found[tiles]:.3f} ms")
        except Exception as failure:  # a card may lack shared memory or registers for it
            say(f"{launch.kernel.__name__} {tiles}: {type(failure).__name__}")
    best = min(found, key=lambda tiles: found[tiles])
    return best, found[best]


def milliseconds(call: Callable[[], None], *, rounds: int = 20) -> float:
    """The median time of a call on the card, after three calls.

    Args:
        call: what is measured.
        rounds: number of timed calls.
    """
    for _ in range(3):
        call()
    taken = []
    for _ in range(rounds):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        end.synchronize()
        taken.append(start.elapsed_time(end))
    return statistics.median(taken)


def tuned(
    *, widths: tuple[int, ...] = (64, 128), say: Callable[[str], None], timer: Timer = milliseconds
) -> Iterator[MeasuredTiles]:
    """Measured tile sizes of the three sweeps on this card.

    Args:
        widths: of the heads.
        say: called with a sentence for each choice.
        timer: milliseconds of a call.
    """
    major, minor = torch.cuda.get_device_capability()
    arch = 10 * major + minor
    for width in widths:
        for kernel, launch in launches(width).items():
            choices = candidates(kernel, arch=arch, width=width)
            tiles, took = fastest(launch, choices, timer=timer, say=say)
            yield MeasuredTiles(
                kernel=kernel, arch=arch, width=width, precise=False, laden=False, tiles=tiles,
                milliseconds=took,
            )  # fmt: skip
