"""Figures of compiled kernels, kept on disk: a long list of predictions goes on where it stopped.

Triton keeps what it compiled; beside it, in the same folder, lies what the model said of that.
"""

from dataclasses import asdict
from functools import cache
from hashlib import sha256
from pathlib import Path

import msgspec
import triton

from attentropy.kernels.triton.ahead.compiling import disassembled
from attentropy.kernels.triton.ahead.model.cards import Card
from attentropy.kernels.triton.ahead.model.figures import Figures, TurnWork, figures
from attentropy.kernels.triton.ahead.model.sass import parse

PARTS = ("cards", "figures", "sass", "simulator", "units")
"""The modules that figures depend on, once a kernel is compiled."""


def figures_once(cubin: bytes, card: Card, work: TurnWork) -> Figures:
    """What the model says of a compiled kernel, from disk if it was asked before.

    Args:
        cubin: the compiled kernel.
        card: the GPU.
        work: what a turn of its loop has to do.
    """
    told = msgspec.json.encode([asdict(card), asdict(work), model_digest()])
    path = folder() / f"{sha256(cubin + told).hexdigest()}.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=Figures)
    except (OSError, msgspec.MsgspecError):
        found = figures(parse(disassembled(cubin)), card, work)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.encode(found))
    return found


def folder() -> Path:
    """Where figures are kept: a folder of Triton's cache."""
    return Path(triton.knobs.cache.dir) / "attentropy"


@cache
def model_digest() -> str:
    """Of the source of the model: figures of another one are not taken."""
    parts = [Path(__file__).with_name(f"{name}.py") for name in PARTS]
    return sha256(b"".join(path.read_bytes() for path in parts)).hexdigest()
