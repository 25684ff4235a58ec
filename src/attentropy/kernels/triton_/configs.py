"""Tile sizes: a small named set per kernel, width of the heads and kind of input.

`docs/gpu.md` lists what each of them takes of a multiprocessor. All are compiled ahead of time
for the three generations of hardware; a test refuses one that spills registers.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Config:
    """BLOCK rows stay in a program, TILE rows pass by.

    `registers` lets the assembler use all that a thread may have; left to itself it sometimes
    spills to fit one more program on a processor.
    """

    name: str
    block: int
    tile: int
    warps: int
    stages: int
    registers: int = 255


INTERPRETED = Config("interpreted", 32, 16, 4, 1)
ROWWISE = (Config("rows", 16, 16, 4, 1),)


def configs(kernel: str, *, width: int, precise: bool, laden: bool) -> tuple[Config, ...]:
    """What to tune over: `width` is the padded width of the heads, `precise` means float32.

    `laden` calls have a mask or bias of pairs, a relative bias or dropout, which take registers.
    """
    return TABLE[f"laden {kernel}" if laden else kernel][precise][width]


def _one(block: int, tile: int, warps: int, stages: int) -> tuple[Config, ...]:
    return (Config("only", block, tile, warps, stages),)


_TALL = Config("tall", 128, 32, 8, 2)
_FLAT = Config("tall", 128, 16, 8, 2)
_LOW = _one(32, 16, 4, 1)
_SMALL = _one(16, 16, 4, 1)
_SPREAD = _one(16, 16, 8, 1)
# float32 products take three instructions of tf32 and their registers: tiles are small
_PRECISE = {16: _SMALL, 32: _SMALL, 64: _SMALL, 128: _SPREAD, 256: _SPREAD}
_PRECISE_LADEN = _PRECISE | {64: _SPREAD}

TABLE: dict[str, dict[bool, dict[int, tuple[Config, ...]]]] = {
    "forward": {
        False: {
            16: (_TALL,),
            32: (_TALL,),
            64: (_TALL, Config("small", 64, 32, 4, 2)),
            128: (_FLAT, Config("small", 32, 32, 4, 2)),
            256: _LOW,
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
        True: _PRECISE,
    },
    "safe": {
        False: {16: _SMALL, 32: _SMALL, 64: _SMALL, 128: _SPREAD, 256: _SPREAD},
        True: _PRECISE,
    },
    "laden forward": {
        False: {16: _LOW, 32: _LOW, 64: _LOW, 128: _SMALL, 256: _SMALL},
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
        False: {16: _SMALL, 32: _SMALL, 64: _SMALL, 128: _SPREAD, 256: _SPREAD},
        True: _PRECISE_LADEN | {16: _SPREAD, 32: _SPREAD},
    },
    "laden safe": {
        False: {16: _SMALL, 32: _SMALL, 64: _SMALL, 128: _SPREAD, 256: _SPREAD},
        True: _PRECISE_LADEN,
    },
}
