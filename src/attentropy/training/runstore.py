"""The run store: one SQLite file per training run, layers x heads x steps, readable while it grows.

Every sample is one transaction in write-ahead mode, so a reader never sees half of it and a
killed process loses at most the sample that it was writing. Opening the file of an earlier run
goes on with it; a step that is recorded again replaces what it was.
"""

import json
import os
import socket
import sqlite3
import time
from array import array
from collections.abc import Iterable, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from attentropy.core.errors import AttentropyError
from attentropy.core.statistics import NAMES, HeadRow, by_place
from attentropy.training.alarms import Alert

FORMAT = "attentropy.run"
VERSION = 2
SUFFIX = ".db"
MAGIC = b"SQLite format 3\x00"

_TABLES = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS layers (
    id INTEGER PRIMARY KEY, name TEXT, call INTEGER, phase TEXT, kind TEXT, heads INTEGER);
CREATE TABLE IF NOT EXISTS samples (step INTEGER PRIMARY KEY, time REAL NOT NULL);
CREATE TABLE IF NOT EXISTS numbers (
    step INTEGER, layer INTEGER, statistic TEXT, heads BLOB, PRIMARY KEY (step, layer, statistic)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS losses (step INTEGER PRIMARY KEY, loss REAL);
CREATE TABLE IF NOT EXISTS alerts (
    step INTEGER, name TEXT, alert TEXT NOT NULL, PRIMARY KEY (step, name));
"""


class RunError(AttentropyError, ValueError):
    """A run store that is not there, or not usable."""


class NoSuchRun(RunError):
    """No file has the name that was given.

    Attributes:
        arguments: those that the caller can change.
    """

    arguments = ("run",)


def directory() -> Path:
    """Where runs are kept: ATTENTROPY_RUNS, or attentropy_runs in the working directory."""
    return Path(os.environ.get("ATTENTROPY_RUNS", "attentropy_runs"))


def find(run: str | Path) -> Path:
    """The file of a run, given as a path or as a name in the directory of runs.

    Args:
        run: a path, or a name in the directory of runs.
    """
    for path in (Path(run), directory() / f"{run}{SUFFIX}", directory() / str(run)):
        if path.is_file():
            return path
    why = "it is a folder, not a file" if Path(run).is_dir() else "no such file"
    raise NoSuchRun(f"there is no run {str(run)!r}: {why}, and none in {directory()}")


def runs(folder: str | Path | None = None) -> list[Path]:
    """The files of all runs in a folder, the newest first.

    Args:
        folder: where to look; the directory of runs by default.
    """
    place = directory() if folder is None else Path(folder)
    return sorted(place.glob(f"*{SUFFIX}"), key=lambda path: -path.stat().st_mtime)


class RunStore:
    """A logger that writes a run.

    Args:
        path: a file, a name in the directory of runs, or None for a name made of the time.
        notes: anything to remember of the run, by name.
    """

    def __init__(
        self, path: str | Path | None = None, *, notes: dict[str, Any] | None = None
    ) -> None:
        self.path = _place(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._db = _open(self.path)
        self._layers: dict[tuple[str, int, str], int] = {}
        with self._db:
            self._db.executescript(_TABLES)
            self._start(notes or {})

    def __call__(self, metrics: dict[str, Any], step: int) -> None:
        """Store one sample: the rows of `metrics.rows`, its loss and its alerts."""
        rows: Sequence[HeadRow] = getattr(metrics, "rows", ())
        with self._db:
            self._db.execute("INSERT OR REPLACE INTO samples VALUES (?, ?)", (step, time.time()))
            self._numbers(rows, step)
            self._alerts(getattr(metrics, "alerts", ()))
            self._loss(step, getattr(metrics, "loss", None))
            self._note("heartbeat", time.time())

    def loss(self, step: int, loss: float) -> None:
        """Store a loss between samples.

        Args:
            step: the training step.
            loss: its loss.
        """
        with self._db:
            self._loss(step, loss)

    def close(self) -> None:
        """Mark the run as finished."""
        with self._db:
            self._note("finished", time.time())
        self._db.close()

    def _start(self, notes: dict[str, Any]) -> None:
        known = dict(self._db.execute("SELECT key, value FROM meta").fetchall())
        if not known:
            started = datetime.now(UTC).isoformat(timespec="seconds")
            for key, value in {"format": FORMAT, "version": VERSION, "started": started}.items():
                self._note(key, value)
        for key, value in {"pid": os.getpid(), "host": socket.gethostname(), **notes}.items():
            self._note(key, value)
        self._db.execute("DELETE FROM meta WHERE key = 'finished'")
        for layer in self._db.execute("SELECT id, name, call, phase FROM layers"):
            self._layers[layer[1:]] = layer[0]

    def _note(self, key: str, value: Any) -> None:
        pair = (key, json.dumps(value))
        self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", pair)

    def _numbers(self, rows: Sequence[HeadRow], step: int) -> None:
        self._db.execute("DELETE FROM numbers WHERE step = ?", (step,))
        for place in by_place(rows):
            layer = self._layer(place[0])
            blobs = (
                (step, layer, name, array("f", (row[name] for row in place)).tobytes())
                for name in NAMES
            )
            self._db.executemany("INSERT INTO numbers VALUES (?, ?, ?, ?)", blobs)

    def _layer(self, row: HeadRow) -> int:
        key = (row.layer, row.call, row.phase)
        if key not in self._layers:
            self._layers[key] = len(self._layers)
            values = (self._layers[key], *key, row.kind, row.heads)
            self._db.execute("INSERT INTO layers VALUES (?, ?, ?, ?, ?, ?)", values)
        return self._layers[key]

    def _alerts(self, alerts: Iterable[Alert]) -> None:
        found = [(one.step, one.name, msgspec.json.encode(one).decode()) for one in alerts]
        self._db.executemany("INSERT OR REPLACE INTO alerts VALUES (?, ?, ?)", found)

    def _loss(self, step: int, loss: float | None) -> None:
        if loss is not None:
            self._db.execute("INSERT OR REPLACE INTO losses VALUES (?, ?)", (step, loss))


def _place(path: str | Path | None) -> Path:
    if path is None:
        name = datetime.now().strftime("%Y%m%d-%H%M%S")
        return directory() / f"{name}-{os.getpid()}{SUFFIX}"
    path = Path(path)
    if path.suffix == SUFFIX:
        return path
    return directory() / f"{path}{SUFFIX}" if path.parent == Path() else path.with_suffix(SUFFIX)


def _open(path: Path) -> sqlite3.Connection:
    if path.is_file() and path.stat().st_size:
        _meta(path)  # raises if it is something else
    db = sqlite3.connect(path, timeout=30, check_same_thread=False)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = NORMAL")
    return db


class StoredRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run as read.

    Attributes:
        name: the name of the run.
        path: its file.
        started: when it started, UTC, ISO 8601.
        running: True while its process may write more.
        layers: the names of its attention modules.
        kinds: "self" or "cross", for each layer.
        heads: the number of heads of each layer.
        steps: the sampled steps.
        metrics: `metrics[statistic][step][layer][head]`; NaN where there is no number.
        losses: (step, loss), which may be denser than `steps`.
        alerts: alarms that rang.
        notes: what was noted of the run, by name.
    """

    name: str
    path: Path
    started: str
    running: bool
    layers: list[str]
    kinds: list[str]
    heads: list[int]
    steps: list[int]
    metrics: dict[str, list[list[list[float]]]]
    losses: list[tuple[int, float]]
    alerts: list[Alert]
    notes: dict[str, Any]


def is_run(path: Path) -> bool:
    """True if the file is a run store: by its first bytes, then by what it says of itself.

    Args:
        path: the file.
    """
    try:
        with path.open("rb") as file:
            if path.suffix != SUFFIX or file.read(len(MAGIC)) != MAGIC:
                return False
        with closing(_reader(path)) as db:
            found = db.execute("SELECT value FROM meta WHERE key = 'format'").fetchone()
    except (OSError, sqlite3.Error):
        return False
    return found is not None and found[0] == json.dumps(FORMAT)


def read(run: str | Path, *, last: int | None = None) -> StoredRun:
    """Read a run, also while it is written.

    Args:
        run: a file, or a name in the directory of runs.
        last: read only so many samples, the newest.
    """
    path = find(run)
    meta = _meta(path)
    with closing(_reader(path)) as db:
        db.execute("BEGIN")  # one view of the file for all that follows
        layers = db.execute(
            "SELECT name, call, phase, kind, heads FROM layers ORDER BY id"
        ).fetchall()
        steps = [row[0] for row in db.execute("SELECT step FROM samples ORDER BY step")]
        steps = steps[-last:] if last is not None else steps
        heads = [row[4] for row in layers]
        losses = db.execute("SELECT step, loss FROM losses ORDER BY step").fetchall()
        return StoredRun(
            name=path.stem,
            path=path,
            started=meta["started"],
            running=_is_running(meta),
            layers=[_label(*row[:3]) for row in layers],
            kinds=[row[3] for row in layers],
            heads=heads,
            steps=steps,
            metrics=_metrics(db, steps, heads),
            losses=[(step, float("nan") if loss is None else loss) for step, loss in losses],
            alerts=_alerts(db, path),
            notes=meta,
        )


def _label(name: str, call: int, phase: str) -> str:
    return name + (f"#{call}" if call else "") + (" (step)" if phase == "step" else "")


def _metrics(
    db: sqlite3.Connection, steps: list[int], heads: list[int]
) -> dict[str, list[list[list[float]]]]:
    where = {step: i for i, step in enumerate(steps)}
    found: dict[str, list[list[list[float]]]] = {
        name: [[[float("nan")] * count for count in heads] for _ in steps] for name in NAMES
    }
    first = steps[0] if steps else 0
    cursor = db.execute(
        "SELECT step, layer, statistic, heads FROM numbers WHERE step >= ?", (first,)
    )
    for step, layer, name, blob in cursor:
        numbers = array("f")
        numbers.frombytes(blob)
        if name in found and step in where:
            found[name][where[step]][layer] = numbers.tolist()
    return found


def _alerts(db: sqlite3.Connection, path: Path) -> list[Alert]:
    cursor = db.execute("SELECT alert FROM alerts ORDER BY step")
    try:
        return [msgspec.json.decode(text, type=Alert) for (text,) in cursor]
    except msgspec.ValidationError as error:
        raise RunError(f"{path} holds an alert that cannot be read: {error}") from error


def _reader(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=30)


def _meta(path: Path) -> dict[str, Any]:
    try:
        with closing(_reader(path)) as db:
            found = {k: json.loads(v) for k, v in db.execute("SELECT key, value FROM meta")}
    except (sqlite3.DatabaseError, ValueError) as error:
        raise RunError(f"{path} is no run of attentropy ({error})") from error
    if found.get("format") != FORMAT:
        raise RunError(f"{path} is no run of attentropy")
    if found.get("version") != VERSION:
        raise RunError(
            f"{path} has version {found.get('version')}; this attentropy reads {VERSION}"
        )
    return found


def _is_running(meta: dict[str, Any]) -> bool:
    """True if it has not finished and its process lives (or, on another host, wrote lately)."""
    if "finished" in meta:
        return False
    if meta.get("host") != socket.gethostname():
        return time.time() - float(meta.get("heartbeat", 0)) < 900
    try:
        os.kill(int(meta["pid"]), 0)
    except (OSError, KeyError, ValueError):
        return False
    return True
