"""Samples of a run: the rows of all heads at one step, and their statistics as arrays.

A run may be of any length, so its `History` keeps only the first and the latest samples.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import overload

import numpy as np

from attentropy.core.statistics import HeadRow

Head = tuple[int, int]
Array = np.ndarray
HEADS = 1 << 32  # more than the heads of any layer


class Columns:
    """Fields of head rows as arrays [H], each made when it is first asked for.

    Args:
        rows: the rows of all heads.
    """

    def __init__(self, rows: Sequence[HeadRow]) -> None:
        self._rows = rows
        self._made: dict[str, Array] = {}

    def __getitem__(self, name: str) -> Array:
        if name not in self._made:
            values = map(attrgetter(name), self._rows)
            self._made[name] = np.fromiter(values, np.float64, len(self._rows))
        return self._made[name]


@dataclass(frozen=True)
class Sample:
    """One sample of a run.

    Attributes:
        step: the training step.
        rows: the rows of all heads.
        loss: the loss of the step, if it is known.
    """

    step: int
    rows: tuple[HeadRow, ...]
    loss: float | None = None

    def head(self, key: Head) -> HeadRow | None:
        """The row of one head; None if the sample has no such head.

        Args:
            key: (index of its place, head).
        """
        return next((row for row in self.rows if (row.index, row.head) == key), None)

    @cached_property
    def columns(self) -> Columns:
        """The statistics of all heads, as arrays in the order of the rows."""
        return Columns(self.rows)

    @cached_property
    def keys(self) -> Array:
        """One integer for each head [H]."""
        index, head = (self.columns[name].astype(np.int64) for name in ("index", "head"))
        return index * HEADS + head


def courses(samples: Sequence[Sample], name: str) -> Array:
    """A statistic over samples [S,H], for the heads of the last one; NaN where a sample lacks one.

    Args:
        samples: the oldest first.
        name: of the statistic.
    """
    return np.stack([_for_heads(sample, samples[-1].keys, name) for sample in samples])


def _for_heads(sample: Sample, keys: Array, name: str) -> Array:
    values = sample.columns[name]
    if np.array_equal(sample.keys, keys):
        return values
    order = np.argsort(sample.keys)
    places = np.searchsorted(sample.keys, keys, sorter=order).clip(max=len(order) - 1)
    found = order[places]
    return np.where(sample.keys[found] == keys, values[found], np.nan)


class History(Sequence[Sample]):
    """The first `first` samples of a run and its latest `latest`, in order; nothing in between.

    Args:
        first: number of samples to keep from the start.
        latest: number of samples to keep at the end.

    >>> history = History(first=1, latest=2)
    >>> for step in range(5):
    ...     history.append(Sample(step, ()))
    >>> [sample.step for sample in history]
    [0, 3, 4]
    """

    def __init__(self, *, first: int, latest: int) -> None:
        self._first: list[Sample] = []
        self._latest: deque[Sample] = deque(maxlen=latest)
        self._room = first

    def append(self, sample: Sample) -> None:
        """Add the newest sample.

        Args:
            sample: of a later step than all others.
        """
        if len(self._first) < self._room:
            self._first.append(sample)
        else:
            self._latest.append(sample)

    def __len__(self) -> int:
        return len(self._first) + len(self._latest)

    def __iter__(self) -> Iterator[Sample]:
        yield from self._first
        yield from self._latest

    @overload
    def __getitem__(self, index: int) -> Sample: ...
    @overload
    def __getitem__(self, index: slice) -> list[Sample]: ...
    def __getitem__(self, index: int | slice) -> Sample | list[Sample]:
        return [*self._first, *self._latest][index]
