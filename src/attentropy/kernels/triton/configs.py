"""Tile sizes: a small named set per kernel, width of the heads and kind of input.

`docs/gpu.md` lists what each of them takes of a multiprocessor. All are compiled ahead of time
for the three generations of hardware; a test refuses one that spills registers.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class TileSizes:
    """BLOCK rows stay in a program, TILE rows pass by.

    `part` columns of wide heads are multiplied at a time and read again for every tile; 0 is all
    columns at once, whose rows of the block then stay in registers. `registers` lets the assembler
    use all that a thread may have; left to itself it sometimes spills to fit one more program on a
    processor.
    """

    name: str
    block: int
    tile: int
    warps: int
    stages: int
    part: int = 0
    registers: int = 255


INTERPRETED = TileSizes("interpreted", 32, 16, 4, 1)
ROWWISE = (TileSizes("rows", 16, 16, 4, 1),)


def configs(kernel: str, *, width: int, precise: bool, laden: bool) -> tuple[TileSizes, ...]:
    """What to tune over: `width` is the padded width of the heads, `precise` means float32.

    `laden` calls have a mask or bias of pairs, a relative bias or dropout, which take registers.
    """
    return TABLE[f"laden {kernel}" if laden else kernel][precise][width]


def _one(block: int, tile: int, warps: int, stages: int, part: int = 0) -> tuple[TileSizes, ...]:
    return (TileSizes("only", block, tile, warps, stages, part),)


_TALL = TileSizes("tall", 128, 32, 8, 2)
_FLAT = TileSizes("tall", 128, 16, 8, 2)
_WIDE = TileSizes("small", 32, 32, 8, 2)
_LOW = _one(32, 16, 4, 1)
_SMALL = _one(16, 16, 4, 1)
_SPREAD = _one(16, 16, 8, 1)
_PARTS = _one(16, 16, 8, 1, part=32)
# float32 products take three instructions of tf32 and their registers: tiles are small
_PRECISE = {16: _SMALL, 32: _SMALL, 64: _SMALL, 128: _SPREAD, 256: _PARTS}
_PRECISE_LADEN = {16: _SMALL, 32: _SMALL, 64: _SPREAD, 128: _PARTS, 256: _PARTS}
_ONCE_MORE = {
    16: _one(16, 16, 4, 1, part=16),
    32: _one(16, 16, 4, 1, part=16),
    64: _one(16, 16, 4, 1, part=16),
    128: _one(16, 16, 8, 1, part=16),
    256: _one(16, 16, 8, 1, part=16),
}

TABLE: dict[str, dict[bool, dict[int, tuple[TileSizes, ...]]]] = {
    "forward": {
        False: {
            16: (_TALL,),
            32: (_TALL,),
            64: (_TALL, TileSizes("small", 64, 32, 4, 2)),
            128: (_FLAT, _WIDE),
            256: (_WIDE,),
        },
        True: _PRECISE,
    },
    "decode": {
        False: {
            16: _one(16, 64, 4, 2),
            32: _one(16, 64, 4, 2),
            64: _one(16, 64, 4, 2),
            128: _one(16, 64, 4, 2),
            256: _one(16, 32, 4, 2),
        },
        True: _PRECISE,
    },
    "queries": {
        False: {16: (_TALL,), 32: (_TALL,), 64: (_TALL,), 128: (_TALL,), 256: _one(32, 16, 8, 1)},
        True: _PRECISE,
    },
    "keys": {
        False: {
            16: _one(64, 32, 4, 2),
            32: _one(64, 32, 4, 2),
            64: _LOW,
            128: _LOW,
            256: _SPREAD,
        },
        True: _PRECISE | {128: _PARTS},
    },
    "safe": {False: _ONCE_MORE, True: _ONCE_MORE},
    "laden forward": {
        False: {16: _LOW, 32: _LOW, 64: _one(32, 16, 8, 1), 128: _SMALL, 256: _SMALL},
        True: _PRECISE_LADEN,
    },
    "laden decode": {
        False: {16: _SMALL, 32: _SMALL, 64: _SMALL, 128: _SMALL, 256: _SMALL},
        True: _PRECISE_LADEN,
    },
    "laden queries": {
        False: {16: _LOW, 32: _LOW, 64: _LOW, 128: _SMALL, 256: _SPREAD},
        True: _PRECISE_LADEN,
    },
    "laden keys": {
        False: {
            16: _SMALL,
            32: _SMALL,
            64: _SMALL,
            128: _SPREAD,
            256: _one(16, 16, 8, 1, part=64),
        },
        True: _PRECISE_LADEN | {16: _SPREAD, 32: _SPREAD, 64: _PARTS},
    },
    "laden safe": {False: _ONCE_MORE, True: _ONCE_MORE},
}
