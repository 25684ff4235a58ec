"""Losses of a run, and means over blocks of them, so that the curve of a long run is read quickly.

A block of level L stands for FAN^L losses and holds their mean and how many of them are numbers.
"""

import math
import sqlite3
from collections.abc import Iterable

from attentropy.training.runstore.frames import FAN, LEVELS

MOST = 2_000
"""Losses of a long run that are read: as many as a curve can show."""

TABLES = (
    "CREATE TABLE losses (step INTEGER PRIMARY KEY, loss REAL)",
    "CREATE TABLE loss_blocks (level INTEGER, last INTEGER, mean REAL, known INTEGER, "
    "PRIMARY KEY (level, last)) WITHOUT ROWID",
)
START = -(2**62)

Point = tuple[int, float | None, int]
"""The last step, the mean (None if there is none) and the number of losses that are numbers."""


def write(db: sqlite3.Connection, step: int, loss: float) -> None:
    """Store a loss, and the blocks that it completes; an existing step is replaced.

    Args:
        db: a connection to the run.
        step: the training step.
        loss: its loss.
    """
    newest = db.execute("SELECT max(step) FROM losses").fetchone()[0]
    if newest is not None and step <= newest:  # the run went back
        db.execute("DELETE FROM loss_blocks WHERE last >= ?", (step,))
    db.execute("INSERT OR REPLACE INTO losses VALUES (?, ?)", (step, loss))
    for level in range(1, LEVELS + 1):
        found = _between(db, level - 1, _end(db, level), step)
        if len(found) < FAN:
            return
        for i in range(0, len(found) - FAN + 1, FAN):
            values = (level, *_together(found[i : i + FAN]))
            db.execute("INSERT OR REPLACE INTO loss_blocks VALUES (?, ?, ?, ?)", values)


def newest(db: sqlite3.Connection, count: int) -> list[tuple[int, float]]:
    """The last losses of a run, in order.

    Args:
        db: a connection to the run.
        count: number of losses.
    """
    query = "SELECT step, loss FROM losses ORDER BY step DESC LIMIT ?"
    return _points(db.execute(query, (count,)).fetchall()[::-1])


def read(db: sqlite3.Connection, *, most: int | None = None) -> list[tuple[int, float]]:
    """Losses in order: all, or means over blocks where there are more than asked for.

    Args:
        db: a connection to the run.
        most: about how many to read.
    """
    count = db.execute("SELECT count(*) FROM losses").fetchone()[0]
    levels = range(LEVELS) if most is not None else range(1)
    level = next((one for one in levels if most is None or count // FAN**one <= most), LEVELS)
    found: list[Point] = []
    for one in range(level, -1, -1):  # what no block covers yet comes from the next finer ones
        found += _between(db, one, found[-1][0] if found else START, -START)
    return _points(found)


def _points(found: Iterable[tuple[int, float | None] | Point]) -> list[tuple[int, float]]:
    return [(point[0], math.nan if point[1] is None else point[1]) for point in found]


def _between(db: sqlite3.Connection, level: int, after: int, until: int) -> list[Point]:
    """Blocks of a level with after < last <= until, in order; level 0 is the losses themselves."""
    if level == 0:
        query = (
            "SELECT step, loss, loss IS NOT NULL FROM losses "
            "WHERE step > ? AND step <= ? ORDER BY step"
        )
        return db.execute(query, (after, until)).fetchall()
    query = (
        "SELECT last, mean, known FROM loss_blocks "
        "WHERE level = ? AND last > ? AND last <= ? ORDER BY last"
    )
    return db.execute(query, (level, after, until)).fetchall()


def _together(points: list[Point]) -> Point:
    known = sum(count for _, _, count in points)
    total = math.fsum(mean * count for _, mean, count in points if mean is not None)
    return points[-1][0], total / known if known else None, known


def _end(db: sqlite3.Connection, level: int) -> int:
    """The last step that blocks of a level stand for; before every step if there is none."""
    found = db.execute("SELECT max(last) FROM loss_blocks WHERE level = ?", (level,)).fetchone()[0]
    return START if found is None else int(found)
