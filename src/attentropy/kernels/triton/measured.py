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
        return msgspec.json.decode(path.read_bytes(), type=list[MeasuredTiles])
    except (OSError, msgspec.MsgspecError) as failure:
        raise ArgumentError(
            VARIABLE, "a file of measured tile sizes", f"{path}: {failure}"
        ) from None


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
