"""Numbers of a sample as bytes, and blocks of samples as their least, mean and largest numbers.

A sample is a float32 table [statistics, heads]. Its layout says which statistics and layers these
are, so that a layer that appears later, or not in every sample, costs nothing elsewhere. A block of
level L stands for FAN^L samples and holds three such tables.
"""

import json
import sqlite3
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

FAN = 8
LEVELS = 7
"""Blocks of the highest level stand for FAN**LEVELS samples, two million."""

Table = np.ndarray[tuple[int, ...], np.dtype[np.float32]]


class Layer(NamedTuple):
    """A place of the model where attention is computed, as the store knows it."""

    id: int
    name: str
    call: int
    phase: str
    kind: str
    heads: int


class Frame(NamedTuple):
    """A sample, or a block of samples.

    Attributes:
        first: the first step.
        last: the last step.
        numbers: [3, statistics, heads], least, mean and largest; all the same for a sample.
    """

    first: int
    last: int
    numbers: Table


@dataclass(frozen=True)
class Layouts:
    """How tables of any layout become tables [statistics, heads] of all layers.

    Attributes:
        statistics: the names of the rows.
        layers: all layers, in the order of the columns.
        known: statistics and ids of layers, by the number of the layout.
    """

    statistics: Sequence[str]
    layers: Sequence[Layer]
    known: dict[int, tuple[tuple[str, ...], tuple[int, ...]]]

    @classmethod
    def of(cls, db: sqlite3.Connection, statistics: Sequence[str]) -> "Layouts":
        """The layouts of a run.

        Args:
            db: a connection to it.
            statistics: the names of the rows to read.
        """
        query = "SELECT id, name, call, phase, kind, heads FROM layers ORDER BY id"
        layers = [Layer(*row) for row in db.execute(query)]
        known = {
            number: (tuple(json.loads(names)), tuple(json.loads(ids)))
            for number, names, ids in db.execute("SELECT id, statistics, layers FROM layouts")
        }
        return cls(statistics, layers, known)

    def whole(self, layout: int, blob: bytes, *, tables: int = 1) -> Table:
        """Tables [tables, statistics, heads] of all layers; NaN where there is no number.

        Args:
            layout: the number of the layout of the bytes.
            blob: the numbers of the layers in the sample.
            tables: 1 for a sample, 3 for a block.
        """
        names, ids = self.known[layout]
        sizes = {layer.id: layer.heads for layer in self.layers}
        starts = dict(zip(sizes, np.cumsum([0, *sizes.values()]).tolist(), strict=False))
        given = np.frombuffer(blob, dtype="<f4")
        given = given.reshape(tables, len(names), sum(sizes[i] for i in ids))
        columns = [starts[i] + head for i in ids for head in range(sizes[i])]
        rows = [(self.statistics.index(n), j) for j, n in enumerate(names) if n in self.statistics]
        found = np.full((len(given), len(self.statistics), sum(sizes.values())), np.nan, "<f4")
        for row, j in rows:
            found[:, row, columns] = given[:, j]
        return found


def samples_between(
    db: sqlite3.Connection, layouts: Layouts, after: int, until: int
) -> list[Frame]:
    """Samples with after < step <= until, in order.

    Args:
        db: a connection to the run.
        layouts: those of the run.
        after: the step before the first.
        until: the last step.
    """
    query = "SELECT step, layout, numbers FROM samples WHERE step > ? AND step <= ? ORDER BY step"
    return [
        Frame(step, step, np.repeat(layouts.whole(layout, blob), 3, 0))
        for step, layout, blob in db.execute(query, (after, until))
    ]


def blocks_between(
    db: sqlite3.Connection, layouts: Layouts, level: int, after: int, until: int
) -> list[Frame]:
    """Blocks of a level that begin after a step and end by another, in order.

    Args:
        db: a connection to the run.
        layouts: those of the run.
        level: of the blocks.
        after: the step before the first.
        until: the last step.
    """
    if level == 0:
        return samples_between(db, layouts, after, until)
    query = (
        "SELECT first, last, layout, numbers FROM blocks "
        "WHERE level = ? AND first > ? AND last <= ? ORDER BY first"
    )
    return [
        Frame(first, last, layouts.whole(layout, blob, tables=3))
        for first, last, layout, blob in db.execute(query, (level, after, until))
    ]


def combined(frames: Sequence[Frame]) -> Frame:
    """The block of some samples or blocks; numbers that are NaN do not count.

    Args:
        frames: in order.
    """
    low, mean, high = (np.stack([frame.numbers[i] for frame in frames]) for i in range(3))
    with warnings.catch_warnings(category=RuntimeWarning, action="ignore"):  # all of them NaN
        numbers = np.stack([np.nanmin(low, 0), np.nanmean(mean, 0), np.nanmax(high, 0)])
    return Frame(frames[0].first, frames[-1].last, numbers.astype("<f4"))


def end_of(db: sqlite3.Connection, level: int) -> int:
    """The last step that blocks of a level stand for; before every step if there is none.

    Args:
        db: a connection to the run.
        level: of the blocks.
    """
    query = "SELECT last FROM blocks WHERE level = ? ORDER BY first DESC LIMIT 1"
    found = db.execute(query, (level,)).fetchone()
    return -(2**62) if found is None else int(found[0])
