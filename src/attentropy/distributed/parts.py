"""A call cut into parts: some of its rows against some keys of a longer sequence.

The call holds the rows of one process; its mask, bias and `visible` are over all keys of the
whole sequence. A part is a call of its own, whose keys count from 0.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from attentropy.core.call import Call
from attentropy.core.masks import Extent, Mask
from attentropy.core.visibility import count, of_rows


@dataclass(frozen=True)
class Run:
    """Rows of a process that stand together: the first at global position `at`."""

    rows: slice
    at: int

    @property
    def count(self) -> int:
        """How many."""
        return int(self.rows.stop - self.rows.start)


@dataclass(frozen=True)
class Bounds:
    """Between which keys every row of a run looks: the least and greatest lo and hi."""

    lo: tuple[int, int]
    hi: tuple[int, int]

    def hides(self, keys: range) -> bool:
        """No row sees any of the keys."""
        return self.hi[1] <= keys.start or self.lo[0] >= keys.stop

    def shows(self, keys: range) -> bool:
        """Every row sees all the keys, as far as intervals say."""
        return self.lo[1] <= keys.start and self.hi[0] >= keys.stop


def bounds(call: Call, run: Run, *, keys: int) -> Bounds:
    """The bounds of a run of rows of a call over so many keys."""
    lo = (0, 0) if call.lo is None else _range(of_rows(call.lo, run.rows))
    hi = (keys, keys) if call.hi is None else _range(of_rows(call.hi, run.rows))
    return Bounds(lo, hi)


def _range(x: Tensor) -> tuple[int, int]:
    if not x.numel():
        return 0, 0
    low, high = torch.stack(x.aminmax()).tolist()
    return low, high


def of_keys(x: Tensor, keys: range) -> Tensor:
    """Some keys of a tensor whose fourth dimension is keys, or 1."""
    return x[..., keys.start : keys.stop] if x.shape[3] > 1 else x


def cut(call: Call, run: Run, keys: range, *, whole: bool, k: Tensor, v: Tensor) -> Call:
    """The call of the rows of a run on the keys of a range, k and v.

    `run.at` and `keys` are positions among the keys of the whole sequence; `whole` says that the
    intervals show every row all of these keys.
    """
    lo, hi = (None if whole else _bound(x, run, keys) for x in (call.lo, call.hi))
    table, bias = (_table(x, run, keys) for x in (call.mask, call.bias))
    predicate = None if call.predicate is None else _moved(call.predicate, run, keys)
    part = call._replace(
        q=call.q[:, :, run.rows],
        k=k,
        v=v,
        scale=of_rows(call.scale, run.rows),
        lo=lo,
        hi=hi,
        mask=table,
        predicate=predicate,
        bias=bias,
        relative=_relative(call, run, keys),
        slopes=None,
        sink=None,
        seed=_seed(call.seed, run, keys),
        shape=_shape(call, run, keys, whole=whole),
    )
    return part._replace(visible=visible(part))


def _bound(x: Tensor | None, run: Run, keys: range) -> Tensor | None:
    if x is None:
        return None
    return (of_rows(x, run.rows) - keys.start).clamp(0, len(keys))


def _table(x: Tensor | None, run: Run, keys: range) -> Tensor | None:
    return None if x is None else of_keys(of_rows(x, run.rows), keys)


def _moved(mask: Mask, run: Run, keys: range) -> Mask:
    """The mask of the call, asked by the indices of a part."""
    first = run.rows.start
    return Mask(lambda w: mask.predicate(w._replace(q=w.q + first, k=w.k + keys.start)), mask.name)


def _shape(call: Call, run: Run, keys: range, *, whole: bool) -> str:
    if call.shape == "other":
        return "other"
    if whole:
        return "full"
    aligned = run.at - keys.start == len(keys) - run.count
    return "causal" if call.shape == "causal" and aligned else "other"


def _relative(call: Call, run: Run, keys: range) -> Tensor | None:
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


def _seed(seed: Tensor | None, run: Run, keys: range) -> Tensor | None:
    """Noise of its own for each part, the same whenever the part is computed."""
    if seed is None:
        return None
    mixed = int(seed) + 0x9E3779B97F4A7C15 * (run.at + 1) + 0xD1B54A32D192ED03 * keys.start
    return torch.tensor(mixed % 2**62, device="cpu")


def visible(part: Call) -> Tensor:
    """How many keys of a part each row sees; int64, broadcastable to [B,H,Q]."""
    batch, heads, queries, _ = part.q.shape
    extent = Extent(batch, heads, queries, part.k.shape[2], part.q.device)
    return count(
        extent,
        lo=part.lo,
        hi=part.hi,
        mask=part.mask,
        predicate=part.predicate,
        bias=part.bias,
    )
