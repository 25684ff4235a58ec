"""Tile sizes: a small named set per kernel, width of the heads and kind of input.

`docs/gpu.md` lists what each of them takes of a multiprocessor. All are compiled ahead of time
for the three generations of hardware; a test refuses one that spills registers.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Config:
    """BLOCK rows stay in a program, TILE rows pass by."""

    name: str
    block: int
    tile: int
    warps: int
    stages: int
    registers: int | None = None


INTERPRETED = Config("interpreted", 32, 16, 4, 1)
ROWWISE = (Config("rows", 16, 16, 4, 1),)


def configs(kernel: str, *, width: int, precise: bool) -> tuple[Config, ...]:
    """What to tune over: `width` is the padded width of the heads, `precise` means float32."""
    return TABLE[kernel][precise][width]


def _set(**rows: tuple[int, int, int, int]) -> tuple[Config, ...]:
    return tuple(Config(name, *sizes) for name, sizes in rows.items())


TABLE: dict[str, dict[bool, dict[int, tuple[Config, ...]]]] = {
    "forward": {
        False: {
            16: _set(tall=(128, 64, 4, 3), small=(64, 64, 4, 3)),
            32: _set(tall=(128, 64, 4, 3), small=(64, 64, 4, 3)),
            64: _set(tall=(128, 64, 8, 3), small=(64, 64, 4, 3)),
            128: _set(tall=(128, 64, 8, 2), small=(64, 64, 4, 2)),
            256: _set(tall=(128, 32, 8, 2), small=(64, 32, 8, 2)),
        },
        True: {
            16: _set(small=(64, 32, 4, 2)),
            32: _set(small=(64, 32, 4, 2)),
            64: _set(small=(64, 32, 4, 2)),
            128: _set(small=(64, 32, 8, 2)),
            256: _set(small=(32, 32, 8, 1)),
        },
    },
}
for _kernel in ("decode", "queries", "keys", "safe"):
    TABLE[_kernel] = TABLE["forward"]
