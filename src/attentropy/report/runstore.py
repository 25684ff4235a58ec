"""A run store (SQLite, written by a Monitor) as the Run that the page shows."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from attentropy.report.run import Alarm, Run, Severity
from attentropy.scans.judging.statistics import STATISTIC

MAGIC = b"SQLite format 3\x00"


def is_run(path: Path) -> bool:
    """Is the file a run store? Looks at its first bytes, then at what it says of itself."""
    if path.suffix != ".db":
        return False
    try:
        with path.open("rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                return False
        address = f"{path.resolve().as_uri()}?mode=ro"
        with closing(sqlite3.connect(address, uri=True, timeout=5)) as db:
            found = db.execute("SELECT value FROM meta WHERE key = 'format'").fetchone()
    except (OSError, sqlite3.Error):
        return False
    return found is not None and found[0] == '"attentropy.run"'


def find_run(name: str) -> Path:
    """The file of a run, given as a path or as a name in the directory of runs."""
    from attentropy.training.runstore import find

    return find(name)


def read_run(path: Path) -> Run:
    """Read a run, also while it is written."""
    from attentropy.training.runstore import read

    stored = read(path)
    metrics: Any = {key: stored.metrics[key] for key in STATISTIC if key in stored.metrics}
    return Run(
        name=stored.name,
        layers=stored.layers,
        heads=stored.heads,
        steps=stored.steps,
        metrics=metrics,
        losses=stored.losses,
        alarms=[_alarm(ring) for ring in stored.alarms],
        running=stored.running,
        started=stored.started,
    )


def _alarm(ring: Any) -> Alarm:
    known: dict[str, Severity] = {"critical": "critical", "note": "note"}
    severity = known.get(ring.severity, "warning")
    return Alarm(ring.step, ring.name, severity, [*ring.heads], ring.text)
