"""What a kernel receives: pointers with their strides, bundled by meaning.

Triton takes a named tuple as one argument, so that a kernel names a tensor once. A stride of 0
broadcasts. A field that is None is left out of the compiled kernel together with its code.
"""

from typing import NamedTuple

from torch import Tensor


class Line(NamedTuple):
    """A tensor broadcast to [B,H,Q] and its strides; None where heads or queries share one."""

    ptr: Tensor
    b: int
    h: int | None
    i: int | None


class View(NamedTuple):
    """A tensor broadcast to four dimensions and its strides: [B,H,N,D] or [B,H,Q,K]."""

    ptr: Tensor
    b: int
    h: int
    i: int
    j: int


class DistanceTable(NamedTuple):
    """The relative bias [1 or H, 2R+1]: the stride of a head and the reach R."""

    ptr: Tensor
    h: int
    reach: int


class LogitTerms(NamedTuple):
    """All that turns the score of a query and a key into a final logit.

    `raw` is 1 where that is nothing but the scale, and else None.
    """

    scale: Line
    lo: Line | None
    hi: Line | None
    mask: View | None
    bias: View | None
    relative: DistanceTable | None
    slopes: Tensor | None
    softcap: float | None
    raw: int | None
    queries: int
    keys: int


class Spans(NamedTuple):
    """Which queries see some and all keys of each `GRAIN` keys; strides of batch and head."""

    ptr: Tensor
    b: int
    h: int


class Drop(NamedTuple):
    """Dropout: a weight stays, times `gain`, if its 23-bit draw is at least `threshold`.

    `low` and `high` are the halves of the seed, signed.
    """

    low: int
    high: int
    threshold: int
    gain: float


class Partial(NamedTuple):
    """Row states of one share of the keys, contiguous, [B*H*Q, splits]; `acc` has Dv columns."""

    m: Tensor
    l: Tensor
    t: Tensor
    u: Tensor
    c: Tensor
    top: Tensor
    acc: Tensor


class Slopes(NamedTuple):
    """Per row of [B,H,Q], what the gradient of its logits is made of.

    With z = log2 p, ds = p * (dP - shift + z * (linear + square * z) + collision * p). `level` has
    units of log 2: log2 p is s - level where nothing is added to scores, with level = lse, and
    (s - m) - level elsewhere, with level = log l, which keeps the digits that s - lse loses beside
    a large m.

    Numbers of `SLOPE_ROWS` neighbouring rows lie together, one kind of number after the other, in
    the order of `SLOPE_KINDS`: a tile of rows has all at fixed steps from one pointer. `ptr` is
    [B,H,blocks,kinds,rows]; `linear`, `square` and `collision` are None where a gradient is zero,
    and else 1.
    """

    ptr: Tensor
    blocks: int
    linear: int | None
    square: int | None
    collision: int | None


SLOPE_ROWS = 16
SLOPE_KINDS = ("shift", "level", "m", "linear", "square", "collision")


def line(tensor: Tensor, shape: tuple[int, ...]) -> Line:
    """The tensor broadcast to `shape` [B,H,Q]."""
    b, h, i = tensor.expand(shape).stride()
    shared = (n == 1 for n in tensor.shape[1:])
    return Line(tensor, b, *(None if one else n for one, n in zip(shared, (h, i), strict=True)))


def view(tensor: Tensor, shape: tuple[int, ...]) -> View:
    """The tensor broadcast to `shape`."""
    return View(tensor, *tensor.expand(shape).stride())
