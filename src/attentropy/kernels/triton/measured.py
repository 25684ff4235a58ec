"""Tile sizes that were measured on a card, from a file: they take the place of the table.

The environment variable ATTENTROPY_TILES names the file, which `attentropy bench --device cuda
--tune` writes: a JSON list of objects with kernel, arch, width, precise, laden and the fields of
`TileSizes`.
"""

import os
from functools import cache
from pathlib import Path

import msgspec

from attentropy.core.errors import ArgumentError
from attentropy.kernels.triton.configs import TileSizes, tile_sizes

VARIABLE = "ATTENTROPY_TILES"
KERNELS = ("forward", "bare forward", "queries", "keys", "decode", "safe", "spread")
LEAST, MOST = 16, 256
"""Rows of a tile."""


class MeasuredTiles(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The best tile sizes of one kernel on one kind of call, and the milliseconds they took."""

    kernel: str
    arch: int
    width: int
    precise: bool
    laden: bool
    tiles: TileSizes
    milliseconds: float


def best_sizes(kernel: str, *, arch: int, width: int, precise: bool, laden: bool) -> TileSizes:
    """The measured tile sizes if the file has them, else those of the table.

    Args:
        kernel: "forward", "bare forward", "queries", "keys", "decode", "safe" or "spread".
        arch: compute capability of the GPU, such as 80 or 90.
        width: padded width of the heads.
        precise: whether inputs are float32.
        laden: whether something is read or drawn for every pair of query and key.
    """
    path = os.environ.get(VARIABLE)
    held = {} if path is None else _by_call(path)
    table = tile_sizes(kernel, arch=arch, width=width, precise=precise, laden=laden)
    return held.get((kernel, arch, width, precise, laden), table)


def load(path: Path) -> list[MeasuredTiles]:
    """The entries of a file; raises with its name if it is not such a file.

    Args:
        path: of the file.
    """
    try:
        found = msgspec.json.decode(path.read_bytes(), type=list[MeasuredTiles])
    except (OSError, msgspec.MsgspecError) as failure:
        raise ArgumentError(
            VARIABLE, "a file of measured tile sizes", f"{path}: {failure}"
        ) from None
    for place, entry in enumerate(found):
        fault = fault_of(entry)
        if fault is not None:
            raise ArgumentError(
                VARIABLE, "a file of measured tile sizes", f"{path}: entry {place}: {fault}"
            )
    return found


def fault_of(entry: MeasuredTiles) -> str | None:
    """What no kernel could take of an entry, or None.

    Args:
        entry: of a file.
    """
    tiles = entry.tiles
    sizes = {"block": tiles.block, "tile": tiles.tile, "part": tiles.part or LEAST}
    if entry.kernel not in KERNELS:
        return f"kernel must be one of {KERNELS}, got {entry.kernel!r}"
    for name, size in sizes.items():
        if size & (size - 1) or not LEAST <= size <= MOST:
            return f"{name} must be a power of two between {LEAST} and {MOST}, got {size}"
    if tiles.warps not in (1, 2, 4, 8, 16):
        return f"warps must be a power of two between 1 and 16, got {tiles.warps}"
    if tiles.stages < 1:
        return f"stages must be >= 1, got {tiles.stages}"
    if not 1 <= tiles.registers <= 255:
        return f"registers must be between 1 and 255, got {tiles.registers}"
    return None


def save(path: Path, found: list[MeasuredTiles]) -> None:
    """Write entries to a file, with those that it holds for other calls.

    Args:
        path: of the file.
        found: new entries.
    """
    held = {_call(x): x for x in load(path)} if path.exists() else {}
    held |= {_call(x): x for x in found}
    path.write_bytes(msgspec.json.format(msgspec.json.encode(list(held.values())), indent=1))


@cache
def _by_call(path: str) -> dict[tuple[str, int, int, bool, bool], TileSizes]:
    return {_call(x): x.tiles for x in load(Path(path))}


def _call(x: MeasuredTiles) -> tuple[str, int, int, bool, bool]:
    return x.kernel, x.arch, x.width, x.precise, x.laden
