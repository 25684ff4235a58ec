"""Loops of plain flash attention as nvdisasm prints them, compiled with triton 3.9.0, width 16.

`forward_sm80`: tiles of 16 x 16, one warp; `forward_sm90`: 64 x 16, four warps.
"""

from pathlib import Path

from attentropy.kernels.triton.ahead.model.sass import parse


def code(name):
    return parse((Path(__file__).parent / "recorded" / f"{name}.sass").read_text())
