"""Tile sizes: one set for each kernel, generation of GPUs, width of the heads and kind of input.

They were chosen by a model of the hardware, not by timing; `docs/gpu.md` has what it says of each.
A file of measured sizes takes their place, see `attentropy.kernels.triton.measured`.
"""

from dataclasses import dataclass, replace

WIDTHS = (16, 32, 64, 128, 256)
GENERATIONS = (80, 90)
"""Compute capabilities that have sizes of their own; later ones take those of the last before."""
ROOMY = (80, 90, 100)
"""Capabilities with 160 KB of shared memory or more; others have 100 KB."""


@dataclass(frozen=True)
class TileSizes:
    """BLOCK rows stay in a program, TILE rows pass by.

    `part` columns of wide heads are multiplied at a time and read again for every tile; 0 is all
    columns at once, whose rows of the block then stay in registers. `registers` is the most that a
    thread may have: fewer let one more program run on a processor.
    """

    block: int
    tile: int
    warps: int
    stages: int
    part: int = 0
    registers: int = 255


INTERPRETED = TileSizes(32, 16, 4, 1)
ROWWISE = TileSizes(16, 16, 4, 1)
_SMALL = TileSizes(16, 16, 4, 1)
_SPREAD = TileSizes(16, 16, 8, 1)
_PARTS = TileSizes(16, 16, 8, 1, part=32)
_DECODE = TileSizes(16, 64, 4, 2)

Rows = dict[int, TileSizes]

HALF: dict[str, dict[int, Rows]] = {
    "bare forward": {
        80: {
            16: TileSizes(64, 64, 4, 3, registers=168),
            32: TileSizes(64, 64, 4, 3, registers=168),
            64: TileSizes(128, 64, 4, 3),
            96: TileSizes(64, 64, 4, 3),
            128: TileSizes(128, 64, 8, 3),
            256: TileSizes(64, 32, 8, 2),
        },
        90: {
            16: TileSizes(128, 64, 8, 3, registers=128),
            32: TileSizes(128, 64, 8, 3, registers=128),
            64: TileSizes(128, 64, 8, 3, registers=128),
            96: TileSizes(128, 64, 8, 3, registers=128),
            128: TileSizes(128, 64, 8, 3),
            256: TileSizes(128, 32, 8, 2),
        },
    },
    "forward": {
        80: {
            16: TileSizes(64, 64, 4, 3, registers=168),
            32: TileSizes(64, 64, 4, 3, registers=168),
            64: TileSizes(64, 64, 4, 3, registers=168),
            96: TileSizes(64, 64, 4, 3),
            128: TileSizes(128, 64, 8, 3),
            256: TileSizes(64, 32, 8, 2),
        },
        90: {
            16: TileSizes(128, 64, 8, 3, registers=128),
            32: TileSizes(128, 64, 8, 3, registers=128),
            64: TileSizes(128, 64, 8, 3, registers=128),
            96: TileSizes(128, 64, 8, 3, registers=128),
            128: TileSizes(128, 64, 8, 3),
            256: TileSizes(128, 32, 8, 2),
        },
    },
    "queries": {
        80: {
            16: TileSizes(128, 32, 4, 3),
            32: TileSizes(128, 32, 4, 3),
            64: TileSizes(128, 32, 4, 3),
            128: TileSizes(128, 32, 8, 3),
            256: TileSizes(64, 32, 8, 2),
        },
        90: {
            16: TileSizes(128, 64, 8, 3, registers=128),
            32: TileSizes(128, 64, 8, 3, registers=128),
            64: TileSizes(128, 64, 8, 3, registers=128),
            128: TileSizes(128, 64, 8, 3),
            256: TileSizes(128, 32, 8, 2),
        },
    },
    "keys": {
        80: {
            16: TileSizes(128, 32, 4, 3),
            32: TileSizes(128, 32, 4, 3),
            64: TileSizes(128, 32, 4, 3),
            128: TileSizes(128, 32, 8, 3),
            256: TileSizes(64, 16, 8, 2),
        },
        90: {
            16: TileSizes(64, 64, 4, 3, registers=168),
            32: TileSizes(64, 64, 4, 3, registers=168),
            64: TileSizes(64, 64, 4, 3, registers=168),
            96: TileSizes(64, 64, 4, 3),
            128: TileSizes(64, 64, 4, 2),
            256: TileSizes(64, 32, 8, 2),
        },
    },
    "decode": {
        80: dict.fromkeys(WIDTHS, _DECODE) | {256: TileSizes(16, 32, 4, 2)},
        90: dict.fromkeys(WIDTHS, _DECODE) | {256: TileSizes(16, 32, 4, 2)},
    },
}
"""bfloat16 and float16, where nothing is read or drawn for every pair.

A bare forward pass computes no statistic but lse and the largest logit.
"""

LADEN: dict[str, Rows] = {
    "forward": dict.fromkeys(WIDTHS, TileSizes(64, 64, 4, 2))
    | {128: TileSizes(64, 32, 4, 2), 256: TileSizes(64, 16, 8, 1)},
    "queries": dict.fromkeys(WIDTHS, TileSizes(64, 32, 4, 2)) | {256: TileSizes(32, 16, 4, 1)},
    "keys": dict.fromkeys(WIDTHS, TileSizes(64, 32, 4, 2))
    | {128: TileSizes(64, 16, 8, 1), 256: TileSizes(16, 16, 4, 1)},
    "decode": dict.fromkeys(WIDTHS, TileSizes(16, 32, 4, 1)),
}
"""bfloat16 and float16 with a mask or bias of pairs, a relative bias or dropout."""

# float32 products take three of tf32 and their registers: tiles of wide heads are small
_FLOAT: Rows = dict.fromkeys((16, 32, 64), TileSizes(64, 32, 4, 2)) | {128: _SPREAD, 256: _PARTS}
_FLOAT_DECODE: Rows = dict.fromkeys((16, 32, 64), _SMALL) | {128: _SPREAD, 256: _PARTS}
_FLOAT_LADEN: Rows = {16: _SMALL, 32: _SMALL, 64: _SPREAD, 128: _PARTS, 256: _PARTS}
PRECISE: dict[bool, dict[str, Rows]] = {
    False: {
        "forward": _FLOAT,
        "decode": _FLOAT_DECODE,
        "queries": _FLOAT,
        "keys": _FLOAT | {128: _PARTS},
    },
    True: {
        "forward": _FLOAT_LADEN,
        "decode": _FLOAT_LADEN,
        "queries": _FLOAT_LADEN,
        "keys": _FLOAT_LADEN | {16: _SPREAD, 32: _SPREAD, 64: _PARTS},
    },
}
"""float32, by whether something is read or drawn for every pair."""

SAFE: Rows = {
    16: TileSizes(16, 16, 4, 1, part=16),
    32: TileSizes(16, 16, 4, 1, part=16),
    64: TileSizes(16, 16, 4, 1, part=16),
    128: TileSizes(16, 16, 8, 1, part=16),
    256: TileSizes(16, 16, 8, 1, part=16),
}
"""The second launch, for rows that are not finite."""

SPREAD: dict[bool, Rows] = {
    False: dict.fromkeys(WIDTHS, TileSizes(64, 64, 4, 2)) | {256: TileSizes(64, 32, 4, 2)},
    True: dict.fromkeys(WIDTHS, TileSizes(64, 32, 4, 1)) | {256: TileSizes(32, 16, 2, 1)},
}
"""Varentropy about the mean, for rows in which it lost digits; by whether inputs are float32."""


def tile_sizes(
    kernel: str, *, arch: int, width: int, precise: bool = False, laden: bool = False
) -> TileSizes:
    """The tile sizes of a kernel.

    Args:
        kernel: "forward", "bare forward", "queries", "keys", "decode", "safe" or "spread".
        arch: compute capability of the GPU, such as 80 or 90.
        width: of the heads; sizes are those of the next width that the table has.
        precise: whether inputs are float32.
        laden: whether something is read or drawn for every pair of query and key.
    """
    if kernel == "safe":
        return _row(SAFE, width)
    if kernel == "spread":
        return _row(SPREAD[precise], width)
    if precise or laden:
        sweep = kernel.removeprefix("bare ")
        return _row((PRECISE[laden] if precise else LADEN)[sweep], width)
    generation = max(one for one in GENERATIONS if one <= max(arch, GENERATIONS[0]))
    found = _row(HALF[kernel][generation if arch in ROOMY else GENERATIONS[0]], width)
    return found if arch in ROOMY else replace(found, stages=min(found.stages, 2))


def _row(rows: Rows, width: int) -> TileSizes:
    return rows[min(n for n in rows if n >= width)]
