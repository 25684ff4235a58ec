"""Reading runs: the whole, the newest samples, or a given number of frames of a long run."""

import os
import socket
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from attentropy.core.statistics import NAMES
from attentropy.training.alarms import Alert
from attentropy.training.runstore import frames, losses
from attentropy.training.runstore.files import RunError, find, meta, reading
from attentropy.training.runstore.frames import FAN, LEVELS, Frame, Layouts, Table

Tables = dict[str, list[list[list[float]]]]
END = 2**62
SILENT = 900.0
"""Seconds after which a run of another machine that wrote nothing has ended."""


class StoredRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run as read.

    Attributes:
        name: the name of the run.
        path: its file.
        started: when it started, UTC, ISO 8601.
        running: True while its process may write more.
        layers: the names of its attention modules.
        kinds: "self", "cross" or "window", for each layer.
        heads: the number of heads of each layer.
        steps: the sampled steps, or the last step of each block of samples.
        total: the number of samples that were recorded.
        metrics: `metrics[statistic][step][layer][head]`; the mean of a block, NaN where there is no
            number.
        lows: the least number over the heads and over the samples of a block, `[statistic][step]`.
        highs: the largest number.
        losses: (step, loss), which may be denser than `steps`; the mean over as many steps as were
            taken together.
        alerts: alarms that rang.
        gaps: (first step, last step, reason) where something could not be written.
        notes: notes on the run, by name.
    """

    name: str
    path: Path
    started: str
    running: bool
    layers: list[str]
    kinds: list[str]
    heads: list[int]
    steps: list[int]
    metrics: Tables
    losses: list[tuple[int, float]]
    alerts: list[Alert]
    notes: dict[str, Any]
    total: int = 0
    lows: dict[str, list[float]] = {}
    highs: dict[str, list[float]] = {}
    gaps: list[tuple[int, int, str]] = []


def read(run: str | Path, *, last: int | None = None, most: int | None = None) -> StoredRun:
    """Read a run, also while it is written.

    Args:
        run: a file, or a name in the directory of runs.
        last: read only this many samples, the newest, and as many losses.
        most: read about this many numbers at most: blocks of samples, and means of losses, where
            there are more.
    """
    path = find(run)
    with reading(path) as db:
        about = meta(db, path)
        layouts = Layouts.of(db, NAMES)
        found = _frames(db, layouts, last=last, most=most)
        layers = layouts.layers
        low, mean, high = _stacked(found, layouts)
        return StoredRun(
            name=path.stem,
            path=path,
            started=str(about["started"]),
            running=_is_running(about),
            layers=[_label(layer.name, layer.call, layer.phase) for layer in layers],
            kinds=[layer.kind for layer in layers],
            heads=[layer.heads for layer in layers],
            steps=[frame.last for frame in found],
            total=_total(db),
            metrics=_nested(mean, layouts),
            lows=_over_heads(low, np.fmin),
            highs=_over_heads(high, np.fmax),
            losses=_losses(db, last=last, most=most),
            alerts=_alerts(db, path),
            gaps=db.execute("SELECT first, last, reason FROM gaps ORDER BY first").fetchall(),
            notes=about,
        )


def samples(run: str | Path) -> Iterator[tuple[int, float | None, Table]]:
    """Every sample in order: its step, its loss and its numbers [statistics, heads].

    Samples are read one after another, so that a run of any length needs little memory.

    Args:
        run: a file, or a name in the directory of runs.
    """
    with reading(find(run)) as db:
        layouts = Layouts.of(db, NAMES)
        query = (
            "SELECT samples.step, loss, layout, numbers FROM samples "
            "LEFT JOIN losses ON losses.step = samples.step ORDER BY samples.step"
        )
        for step, loss, layout, blob in db.execute(query):
            yield step, loss, layouts.whole(layout, blob)[0]


def _total(db: sqlite3.Connection) -> int:
    return int(db.execute("SELECT count(*) FROM samples").fetchone()[0])


def _frames(
    db: sqlite3.Connection, layouts: Layouts, *, last: int | None, most: int | None
) -> list[Frame]:
    if last is not None:
        query = "SELECT step FROM samples ORDER BY step DESC LIMIT ?"
        steps = [row[0] for row in db.execute(query, (last,))]
        return frames.samples_between(db, layouts, steps[-1] - 1, END) if steps else []
    heads = sum(layer.heads for layer in layouts.layers)
    each = max(1, heads * len(layouts.statistics))
    level = 0 if most is None else _level(_total(db), max(2, most // each))
    found: list[Frame] = []
    for one in range(level, -1, -1):  # what no block covers yet comes from the next finer ones
        after = found[-1].last if found else -END
        found += frames.blocks_between(db, layouts, one, after, END)
    return found


def _level(count: int, most: int) -> int:
    """The finest level that has at most so many blocks."""
    return next((level for level in range(LEVELS) if count // FAN**level <= most), LEVELS)


def _stacked(found: list[Frame], layouts: Layouts) -> Table:
    """Least, mean and largest numbers [3, frames, statistics, heads]."""
    heads = sum(layer.heads for layer in layouts.layers)
    shape = (3, 0, len(layouts.statistics), heads)
    if not found:
        return np.empty(shape, dtype="<f4")
    return np.stack([frame.numbers for frame in found], axis=1)


def _nested(numbers: Table, layouts: Layouts) -> Tables:
    ends = np.cumsum([layer.heads for layer in layouts.layers])[:-1]
    return {
        name: [
            [layer.tolist() for layer in np.split(frame, ends)] if layouts.layers else []
            for frame in numbers[:, i]
        ]
        for i, name in enumerate(layouts.statistics)
    }


def _over_heads(numbers: Table, extreme: np.ufunc) -> dict[str, list[float]]:
    if not numbers.shape[2]:
        return {name: [] for name in NAMES}
    return {name: extreme.reduce(numbers[:, i], axis=1).tolist() for i, name in enumerate(NAMES)}


def _losses(
    db: sqlite3.Connection, *, last: int | None, most: int | None
) -> list[tuple[int, float]]:
    if last is not None:
        return losses.newest(db, last)
    return losses.read(db, most=None if most is None else losses.MOST)


def _label(name: str, call: int, phase: str) -> str:
    return name + (f"#{call}" if call else "") + (" (step)" if phase == "step" else "")


def _alerts(db: sqlite3.Connection, path: Path) -> list[Alert]:
    cursor = db.execute("SELECT alert FROM alerts ORDER BY step")
    try:
        return [msgspec.json.decode(text, type=Alert) for (text,) in cursor]
    except msgspec.DecodeError as error:
        raise RunError(f"{path} holds an alert that cannot be read: {error}") from error


def _is_running(about: dict[str, Any]) -> bool:
    """True if it has not finished and its process lives (or, on another host, wrote lately)."""
    if "finished" in about:
        return False
    if about.get("host") != socket.gethostname():
        return time.time() - float(about.get("heartbeat", 0)) < SILENT
    try:
        os.kill(int(about["pid"]), 0)
    except PermissionError:  # it lives, and belongs to someone else
        return True
    except (OSError, KeyError, ValueError, TypeError, OverflowError):
        return False
    return True
