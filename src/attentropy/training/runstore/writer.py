"""RunStore: the logger that writes a run."""

import json
import os
import socket
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from attentropy.core.statistics import NAMES, HeadRow, by_place
from attentropy.training.alarms import Alert
from attentropy.training.runstore import frames, losses
from attentropy.training.runstore.files import (
    FORMAT,
    VERSION,
    RunError,
    connect,
    is_regular,
    meta,
    place,
)
from attentropy.training.runstore.frames import FAN, LEVELS, Frame, Layouts
from attentropy.training.runstore.ownership import Ownership

TABLES = (
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "CREATE TABLE layers (id INTEGER PRIMARY KEY, name TEXT, call INTEGER, phase TEXT, "
    "kind TEXT, heads INTEGER)",
    "CREATE TABLE layouts (id INTEGER PRIMARY KEY, statistics TEXT, layers TEXT, "
    "UNIQUE (statistics, layers))",
    "CREATE TABLE samples (step INTEGER PRIMARY KEY, time REAL, layout INTEGER, numbers BLOB)",
    "CREATE INDEX counted ON samples (step)",  # counting walks this, not the numbers
    "CREATE TABLE blocks (level INTEGER, first INTEGER, last INTEGER, layout INTEGER, "
    "numbers BLOB, PRIMARY KEY (level, first))",
    *losses.TABLES,
    "CREATE TABLE alerts (step INTEGER, name TEXT, alert TEXT NOT NULL, PRIMARY KEY (step, name))",
    "CREATE TABLE gaps (first INTEGER PRIMARY KEY, last INTEGER, reason TEXT)",
)
SETTINGS = ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = NORMAL")


class RunStore:
    """A logger that writes a run; no other process can write the same run.

    Args:
        path: a file, a name in the directory of runs, or None for a name made of the time.
        notes: anything to store about the run, by name.
    """

    def __init__(
        self, path: str | Path | None = None, *, notes: dict[str, Any] | None = None
    ) -> None:
        self.path, self._closed = place(path), False
        self.path.parent.mkdir(parents=True, exist_ok=True)
        _check(self.path)
        self._owner = Ownership(self.path)
        try:
            self._db = _open(self.path)
            with self._writing():
                _make(self._db)
                self._start(notes or {})
        except BaseException as error:
            self._owner.release()
            if isinstance(error, sqlite3.Error):
                raise RunError(f"{self.path} cannot be opened: {error}") from error
            raise

    def __call__(self, metrics: dict[str, Any], step: int) -> None:
        """Store one sample: the rows of `metrics.rows`, its loss and its alerts."""
        rows: Sequence[HeadRow] = getattr(metrics, "rows", ())
        with self._writing():
            newest = self._db.execute("SELECT max(step) FROM samples").fetchone()[0]
            if newest is not None and step <= newest:  # the run went back
                self._db.execute("DELETE FROM blocks WHERE last >= ?", (step,))
            layout, numbers = self._packed(rows)
            values = (step, time.time(), layout, numbers)
            self._db.execute("INSERT OR REPLACE INTO samples VALUES (?, ?, ?, ?)", values)
            self._fold(step)
            self._alerts(getattr(metrics, "alerts", ()))
            self._loss(step, getattr(metrics, "loss", None))
            self._note("heartbeat", time.time())

    def loss(self, step: int, loss: float) -> None:
        """Store a loss between samples.

        Args:
            step: the training step.
            loss: its loss.
        """
        with self._writing():
            self._loss(step, loss)

    def gap(self, first: int, last: int, reason: str) -> None:
        """Mark steps that could not be written completely.

        Args:
            first: the first step that is missing.
            last: the last one.
            reason: why, in words.
        """
        with self._writing():
            values = (first, last, reason)
            self._db.execute("INSERT OR REPLACE INTO gaps VALUES (?, ?, ?)", values)

    def close(self) -> None:
        """Mark the run as finished, and let others write it; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        try:
            with self._writing():
                self._note("finished", time.time())
        finally:
            self._db.close()
            self._owner.release()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """All of the block or nothing of it is written."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    def _start(self, notes: dict[str, Any]) -> None:
        if not self._db.execute("SELECT count(*) FROM meta").fetchone()[0]:
            started = datetime.now(UTC).isoformat(timespec="seconds")
            for key, value in {"format": FORMAT, "version": VERSION, "started": started}.items():
                self._note(key, value)
        for key, value in {"pid": os.getpid(), "host": socket.gethostname(), **notes}.items():
            self._note(key, value)
        self._note("heartbeat", time.time())
        self._db.execute("DELETE FROM meta WHERE key = 'finished'")

    def _note(self, key: str, value: Any) -> None:
        pair = (key, json.dumps(value))
        self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", pair)

    def _packed(self, rows: Sequence[HeadRow]) -> tuple[int, bytes]:
        """The layout of the rows, and their numbers [statistics, heads] as bytes."""
        places = by_place(rows)
        layout = self._layout([self._layer(one[0]) for one in places])
        ordered = [row for one in places for row in one]
        numbers = np.array([[row[name] for row in ordered] for name in NAMES], dtype="<f4")
        return layout, numbers.tobytes()

    def _layer(self, row: HeadRow) -> int:
        key = (row.layer, row.call, row.phase)
        query = "SELECT id FROM layers WHERE name = ? AND call = ? AND phase = ?"
        found = self._db.execute(query, key).fetchone()
        if found is not None:
            return int(found[0])
        number = self._db.execute("SELECT count(*) FROM layers").fetchone()[0]
        values = (number, *key, row.kind, row.heads)
        self._db.execute("INSERT INTO layers VALUES (?, ?, ?, ?, ?, ?)", values)
        return int(number)

    def _layout(self, layers: Sequence[int]) -> int:
        key = (json.dumps(NAMES), json.dumps(layers))
        self._db.execute("INSERT OR IGNORE INTO layouts (statistics, layers) VALUES (?, ?)", key)
        query = "SELECT id FROM layouts WHERE statistics = ? AND layers = ?"
        return int(self._db.execute(query, key).fetchone()[0])

    def _fold(self, step: int) -> None:
        """Make the blocks that the samples up to this step complete."""
        for level in range(1, LEVELS + 1):
            after = frames.end_of(self._db, level)
            if _count(self._db, level - 1, after, step) < FAN:
                return
            layouts = Layouts.of(self._db, NAMES)
            found = frames.blocks_between(self._db, layouts, level - 1, after, step)
            for i in range(0, len(found) - FAN + 1, FAN):
                self._block(level, frames.combined(found[i : i + FAN]))

    def _block(self, level: int, block: Frame) -> None:
        ids = [row[0] for row in self._db.execute("SELECT id FROM layers ORDER BY id")]
        values = (level, block.first, block.last, self._layout(ids), block.numbers.tobytes())
        self._db.execute("INSERT OR REPLACE INTO blocks VALUES (?, ?, ?, ?, ?)", values)

    def _alerts(self, alerts: Iterable[Alert]) -> None:
        found = [(one.step, one.name, msgspec.json.encode(one).decode()) for one in alerts]
        self._db.executemany("INSERT OR REPLACE INTO alerts VALUES (?, ?, ?)", found)

    def _loss(self, step: int, loss: float | None) -> None:
        if loss is not None:
            losses.write(self._db, step, loss)


def _count(db: sqlite3.Connection, level: int, after: int, until: int) -> int:
    if level == 0:
        query = "SELECT count(*) FROM samples WHERE step > ? AND step <= ?"
        return int(db.execute(query, (after, until)).fetchone()[0])
    query = "SELECT count(*) FROM blocks WHERE level = ? AND first > ? AND last <= ?"
    return int(db.execute(query, (level, after, until)).fetchone()[0])


def _check(path: Path) -> None:
    """Refuse a file that is something else; one that is empty or half made is a new run."""
    if not path.exists():
        return
    if not is_regular(path):
        raise RunError(f"{path} is not a file that a run can be written to")
    try:
        with closing(connect(path)) as db:
            if db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                meta(db, path)
    except sqlite3.Error as error:
        raise RunError(f"{path} is not a run of attentropy ({error})") from error


def _open(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=30, check_same_thread=False, isolation_level=None)
    for setting in SETTINGS:
        db.execute(setting)
    return db


def _make(db: sqlite3.Connection) -> None:
    if not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        for table in TABLES:
            db.execute(table)
