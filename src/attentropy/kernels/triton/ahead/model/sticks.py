"""Tile sizes of the plain kernels, the measuring stick: the best of those that were tried."""

from attentropy.kernels.triton.configs import TileSizes

Rows = dict[int, TileSizes]

_HALF: dict[str, dict[int, Rows]] = {
    "forward": {
        80: {
            16: TileSizes(64, 64, 4, 3, registers=168),
            32: TileSizes(64, 64, 4, 3, registers=168),
            64: TileSizes(128, 64, 4, 3),
            128: TileSizes(128, 64, 8, 3),
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
            128: TileSizes(128, 64, 8, 3),
            256: TileSizes(64, 32, 8, 2),
        },
    },
}
_SMALL = dict.fromkeys((16, 32, 64, 128, 256), TileSizes(64, 32, 4, 2)) | {
    256: TileSizes(32, 16, 4, 1)
}
STICKS = {False: _HALF, True: {kernel: {80: _SMALL, 90: _SMALL} for kernel in _HALF}}
"""By whether inputs are float32 (multiplied in tf32), kernel, architecture and width."""

_WIDE = {128: TileSizes(128, 32, 8, 2), 256: TileSizes(64, 32, 8, 1)}
_PAIRS: dict[str, Rows] = {
    "forward": dict.fromkeys((16, 32, 64), TileSizes(64, 32, 4, 2)) | _WIDE,
    "queries": dict.fromkeys((16, 32, 64), TileSizes(64, 64, 4, 2)) | _WIDE,
    "keys": dict.fromkeys((16, 32, 64), TileSizes(64, 64, 4, 2)) | _WIDE,
}
LADEN_STICKS = {
    False: {kernel: {80: rows, 90: rows} for kernel, rows in _PAIRS.items()},
    True: STICKS[True],
}
"""As STICKS, where something is read for every pair; only those 64 wide were compared."""
