"""LiveText: a text whose queries and keys stay in memory, so that any row can be shown at once.

A row costs one product of a query with all keys, a column one of a key with all queries; no table
of all pairs exists.
"""

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attentropy.core.call import Call
from attentropy.core.errors import UnsupportedError
from attentropy.core.results import Stats
from attentropy.core.visibility import ALL
from attentropy.kernels.tiled.logits import row_logits
from attentropy.models.record.accumulators import Owner
from attentropy.models.record.model_call import ModelCall
from attentropy.scans.texts.packing import EXACT
from attentropy.scans.texts.reading import TokenReading
from attentropy.scans.texts.records import TextTable
from attentropy.scans.texts.table import packed_rows, table_of
from attentropy.scans.texts.token_rows import RowRecorder, is_one_text, place_of
from attentropy.scans.texts.view import MOST, Head, TextView, measured

MEMORY = 8 << 30
"""Bytes of queries, keys and biases that are kept at most."""


class CallRecorder(RowRecorder):
    """Keeps statistics of every token, and queries and keys of every call.

    Args:
        memory: bytes that may be kept.
    """

    def __init__(self, *, memory: int = MEMORY) -> None:
        super().__init__()
        self.calls: dict[str, tuple[Call, Tensor]] = {}
        self.memory = memory

    def prepare(
        self, owner: Owner, asked: ModelCall, out: Tensor | None, stats: Stats
    ) -> Callable[[], None]:
        """Keep one call, and its rows."""
        commit, place = super().prepare(owner, asked, out, stats), place_of(owner)
        if stats.lse is not None and not is_one_text(asked, stats):
            call = asked.call._replace(v=asked.call.v[..., :0])
            parts = (call.q, call.k, *([] if call.bias is None else [call.bias]))
            self.memory -= sum(part.untyped_storage().nbytes() for part in parts)
            if self.memory < 0:
                raise UnsupportedError(
                    "queries and keys of this text take too much memory: read fewer tokens"
                )
            self.calls[place] = call, stats.lse[0].detach()
        return commit


class LiveText:
    """One text of a model that stays in memory.

    Args:
        reading: a model and its tokens.
        memory: bytes of queries, keys and biases that may be kept.

    Attributes:
        layers: a row of each layer that can be shown.
    """

    def __init__(self, reading: TokenReading, *, memory: int = MEMORY) -> None:
        recorder = CallRecorder(memory=memory)
        self.reading = reading
        self.layers, self.rows, self.odd = measured(reading, recorder)
        self._calls = [recorder.calls[row.place] for row in self.layers]
        self._lock = threading.Lock()
        self.surprise = reading.surprise(self.layers)

    def table(self) -> TextTable:
        """The text with the means of all heads and of each layer; heads are asked for later."""
        return table_of(
            TextView(
                ids=self.reading.ids,
                labels=self.reading.labels,
                layers=self.layers,
                rows=self.rows,
                surprise=self.surprise,
                heads=[],
                looks={},
                left=self.reading.left,
                sides=self.reading.sides,
                generated=self.reading.generated,
                picture=self.reading.picture,
                odd=self.odd,
            )
        )

    def has(self, head: Head) -> bool:
        """True if the model has this head.

        Args:
            head: layer and number.
        """
        layer, number = head
        return 0 <= layer < len(self.layers) and 0 <= number < self.layers[layer].heads

    def head(self, head: Head) -> dict[str, str]:
        """Statistics of every token for one head, packed.

        Args:
            head: layer and number.
        """
        layer, number = head
        return packed_rows({name: x[number] for name, x in self.rows[layer].items()}, EXACT)

    def look(self, head: Head, token: int) -> dict[str, dict[str, Any]]:
        """Where a token looks, and who looks at it: the largest weights and the sum of the rest.

        Args:
            head: layer and number.
            token: its place among all tokens.
        """
        queries, keys = self.reading.sides_of(self.layers[head[0]])
        with self._lock:
            return {
                "keys": _largest(self.row(head, token), keys.start),
                "readers": _largest(self.column(head, token), queries.start),
            }

    def row(self, head: Head, token: int) -> Tensor | None:
        """All weights of one query, [K]; None if this token is not a query of this layer.

        Args:
            head: layer and number.
            token: its place among all tokens.
        """
        queries, _ = self.reading.sides_of(self.layers[head[0]])
        at = token - queries.start
        if not 0 <= at < queries.count:
            return None
        call, lse = self._calls[head[0]]
        logits = row_logits(call, slice(at, at + 1))[0, head[1], 0]
        return _weights(logits, lse[head[1], at])

    def column(self, head: Head, token: int) -> Tensor | None:
        """What every query gives to one key, [Q]; None if this token is not a key of this layer.

        Args:
            head: layer and number.
            token: its place among all tokens.
        """
        _, keys = self.reading.sides_of(self.layers[head[0]])
        at = token - keys.start
        if not 0 <= at < keys.count:
            return None
        call, lse = self._calls[head[0]]
        logits = row_logits(call, ALL, keys=slice(at, at + 1))[0, head[1], :, 0]
        return _weights(logits, lse[head[1]])


def _weights(logits: Tensor, lse: Tensor) -> Tensor:
    """Weights of logits; 0 where a row sees nothing."""
    lse = lse.masked_fill(lse.isneginf(), 0.0)
    return (logits - lse).exp().cpu()


def _largest(weights: Tensor | None, start: int) -> dict[str, Any]:
    if weights is None:
        return {"rows": [], "rest": None}
    values, places = weights.topk(min(MOST, len(weights)))
    rest = weights.sum(dtype=torch.float64) - values.sum(dtype=torch.float64)
    rows = [
        [place + start, value]
        for place, value in zip(places.tolist(), values.tolist(), strict=True)
        if value > 0
    ]
    return {"rows": rows, "rest": max(0.0, float(rest))}
