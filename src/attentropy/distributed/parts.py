"""A call cut into parts: some of its rows against some keys of a longer sequence.

The call holds the rows of one process; its mask, bias and `visible` are over all keys of the
whole sequence. A part is a call of its own, whose keys count from 0.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from attentropy.core.call import Call
from attentropy.core.visibility import Span


@dataclass(frozen=True)
class RowRun:
    """Rows of a rank that stand together.

    Attributes:
        rows: which rows of the call.
        at: position of the first one among all keys.
    """

    rows: slice
    at: int

    @property
    def count(self) -> int:
        """Number of rows."""
        return int(self.rows.stop - self.rows.start)


def cut(call: Call, run: RowRun, keys: range, *, whole: bool, k: Tensor, v: Tensor) -> Call:
    """The call of some rows on some keys, which count from 0 there.

    Args:
        call: over all keys of the whole sequence.
        run: which rows; `run.at` is a position among those keys.
        keys: which keys, as positions.
        whole: whether the bounds show every row all of these keys.
        k: these keys.
        v: these values.
    """
    span = Span(queries=run.rows, keys=slice(keys.start, keys.stop))
    seen = call.seen.select(span).rebased()
    if whole:
        seen = seen._replace(lo=None, hi=None)
    return call._replace(
        q=call.q[:, :, run.rows],
        k=k,
        v=v,
        scale=span.of(call.scale),
        seen=seen._replace(shape=_shape(call, run, keys, whole=whole)).with_visible(),
        bias=None if call.bias is None else span.of(call.bias),
        relative=_relative(call, run, keys),
        slopes=None,
        sink=None,
        seed=_seed(call.seed, run, keys),
    )


def _shape(call: Call, run: RowRun, keys: range, *, whole: bool) -> str:
    if call.seen.shape == "other":
        return "other"
    if whole:
        return "full"
    aligned = run.at - keys.start == len(keys) - run.count
    return "causal" if call.seen.shape == "causal" and aligned else "other"


def _relative(call: Call, run: RowRun, keys: range) -> Tensor | None:
    """What depends on the distance, as a table over the distances of the part."""
    if call.relative is None and call.slopes is None:
        return None
    reach = max(run.count, len(keys))
    offset = keys.start - run.at + len(keys) - run.count
    distance = torch.arange(-reach, reach + 1, device=call.q.device) + offset
    if call.relative is not None:
        limit = call.relative.shape[-1] // 2
        return call.relative[:, distance.clamp(-limit, limit) + limit]
    assert call.slopes is not None
    wide = call.scale.dtype
    return -call.slopes.to(wide)[:, None] * distance.abs().to(wide)


def _seed(seed: Tensor | None, run: RowRun, keys: range) -> Tensor | None:
    """Noise of its own for each part, the same whenever the part is computed."""
    if seed is None:
        return None
    mixed = int(seed) + 0x9E3779B97F4A7C15 * (run.at + 1) + 0xD1B54A32D192ED03 * keys.start
    return torch.tensor(mixed % 2**62, device="cpu")
