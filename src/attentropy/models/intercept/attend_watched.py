"""Models made of attentropy itself: calls of attend() by a watched module are recorded as they are.

While anything is watched, attend() hands its calls here; the output stays the kernel's own, and so
do the statistics of every row. What cannot be recorded is noted, and told when the watch ends.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from attentropy.attention.hooks import hooks
from attentropy.core.call import Call
from attentropy.core.results import Attended
from attentropy.core.weights import Gumbel
from attentropy.kernels.tiled.tiles import TILE_ELEMENTS, RowBlock, Tiler, logits
from attentropy.models.intercept import running
from attentropy.models.intercept.running import Working
from attentropy.models.record.accumulators import owner_of
from attentropy.models.record.model_call import Asked
from attentropy.models.record.visibility import Sight


@dataclass(frozen=True, eq=False, kw_only=True)
class Heard(Asked):
    """A call of attend(), whose logits may be made of anything that attend() takes."""

    call: Call

    @cached_property
    def tiler(self) -> Tiler:
        """The logits of the call, with this scale."""
        return Tiler(self.call._replace(scale=torch.as_tensor(self.scale, device=self.q.device)))

    def attend(self) -> Attended:
        raise AssertionError("a call of attend() is only observed")

    def logits_of_first(self, rows: slice) -> Tensor:
        return self.logits_of(None)[..., rows]

    def logits_of(self, key: Tensor | None) -> Tensor:
        places = [0] if key is None else key.flatten().tolist()
        entries = range(self.sizes[0]) if len(places) > 1 else (None,)
        each = [
            self._tile(place, place + 1, entry=entry)
            for place, entry in zip(places, entries, strict=True)
        ]
        return torch.cat(each)[..., 0]

    def logits_before(self) -> Tensor:
        batch, heads, queries, keys = self.sizes
        step = max(1, TILE_ELEMENTS // (batch * heads * keys))
        pieces = torch.arange(queries, device=self.q.device).split(step)
        return torch.cat([self._before(rows) for rows in pieces], 2)

    def logits_at(self, rows: Tensor) -> Tensor:
        each = [self._tile(0, self.sizes[3], first=row, count=1) for row in rows.tolist()]
        return torch.cat(each, 2)

    def scores_at(self, rows: Tensor) -> Tensor:
        return self.logits_at(rows)

    def _before(self, rows: Tensor) -> Tensor:
        """Logits of the key before each of these consecutive rows, [B,H,R]."""
        assert self.sight.own is not None
        s = self._tile(0, self.sizes[3], first=int(rows[0]), count=len(rows))
        place = self.sight.own[rows] - 1
        picked = s.gather(-1, place.clamp(min=0).expand(s.shape[:3])[..., None])[..., 0]
        return picked.masked_fill(place < 0, -torch.inf)

    def _tile(
        self,
        low: int,
        high: int,
        *,
        entry: int | None = None,
        first: int = 0,
        count: int | None = None,
    ) -> Tensor:
        """Final logits of keys low .. high of some rows, of one entry of the batch or all."""
        tiler = self.tiler
        batch = slice(0, tiler.batch) if entry is None else slice(entry, entry + 1)
        last = tiler.queries if count is None else first + count
        block = RowBlock(batch, slice(0, tiler.heads), slice(first, last))
        return tiler.four(block, logits(tiler, block, slice(low, high))).clone()


class _Ear:
    users = 0


def install() -> None:
    """One more user."""
    _Ear.users += 1
    hooks.record, hooks.skip = _observed, _unseen


def uninstall() -> None:
    """One user less; the last one puts everything back."""
    _Ear.users -= 1
    if not _Ear.users:
        hooks.record = hooks.skip = None


def _observed(call: Call, compute: Callable[[], Attended]) -> Attended:
    if Working.on:
        return compute()
    with _working():
        attended = compute()
        _record(call, attended)
    return attended


def _unseen(what: str, compute: Callable[[], Attended]) -> Attended:
    owner = None if Working.on else owner_of(running.current())
    if owner is not None and owner.recorder.wants():
        owner.recorder.missed[owner.name] = f"{what}, which returns exact statistics itself"
    with _working():
        return compute()


@contextmanager
def _working() -> Iterator[None]:
    """A softmax inside is the kernel's, not the model's."""
    before, Working.on = Working.on, True
    try:
        yield
    finally:
        Working.on = before


@torch.no_grad()
def _record(call: Call, attended: Attended) -> None:
    module = running.current()
    owner = owner_of(module)
    if owner is None or not owner.recorder.wants() or not call.q.numel() or not call.k.shape[2]:
        return
    sight = _sight(call, cross=owner.kind == "cross")
    if torch.compiler.is_compiling():
        if _by_hand(call):
            owner.recorder.missed[owner.name] = f"{_by_hand(call)} in a compiled graph"
            return
        asked = _plain(call, sight)
    else:
        asked = Heard(
            q=call.q,
            k=call.k,
            v=call.v,
            sight=sight,
            scale=call.scale,
            bias=call.bias,
            weights=call.weights,
            call=call,
        )
    owner.recorder.record(owner, asked, attended.out.detach(), attended.stats)


def _by_hand(call: Call) -> str | None:
    """What logits have that takes the tiles of a kernel, which torch.compile does not trace."""
    if call.additive is not None:
        return "additive scores"
    return "Gumbel noise" if isinstance(call.weights, Gumbel) else None


def _plain(call: Call, sight: Sight) -> Asked:
    """A call on dot products, with its bias in one table."""
    added = [x for x in (call.bias, _of_distance(call)) if x is not None]
    return Asked(
        q=call.q,
        k=call.k,
        v=call.v,
        sight=sight,
        scale=call.scale,
        bias=sum(added[1:], added[0]) if added else None,
        softcap=call.softcap,
        sink=call.sink,
        weights=call.weights,
    )


def _of_distance(call: Call) -> Tensor | None:
    """The bias of the distance of a key from the query, [1,H,Q,K]."""
    queries, keys = call.q.shape[2], call.k.shape[2]
    place = torch.arange(queries, device=call.q.device)[:, None] + (keys - queries)
    away = torch.arange(keys, device=call.q.device) - place
    if call.relative is not None:
        reach = call.relative.shape[1] // 2
        return call.relative[:, away.clamp(-reach, reach) + reach][None]
    return None if call.slopes is None else -call.slopes.view(1, -1, 1, 1) * away.abs()


def _sight(call: Call, *, cross: bool) -> Sight:
    """By bounds where the call has them, else by a table."""
    queries, keys = call.q.shape[2], call.k.shape[2]
    seen = call.seen
    by_table = seen.table is not None or seen.predicate is not None
    return Sight(
        queries=queries,
        keys=keys,
        lo=None if by_table else seen.lo,
        hi=None if by_table else seen.hi,
        table=seen.dense() if by_table else None,
        own=None if cross else torch.arange(queries, device=call.q.device) + (keys - queries),
        is_causal=seen.shape == "causal",
        from_model=by_table,
    )
