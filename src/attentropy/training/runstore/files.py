"""The files of runs: their names, their places, and how SQLite opens them."""

import json
import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from attentropy.core.errors import AttentropyError

FORMAT = "attentropy.run"
VERSION = 4
SUFFIX = ".db"
MAGIC = b"SQLite format 3\x00"


class RunError(AttentropyError, ValueError):
    """A run store is missing or cannot be used."""


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
        if is_regular(path):
            return path
    why = "it is a folder, not a file" if Path(run).is_dir() else "no such file"
    raise NoSuchRun(f"there is no run {str(run)!r}: {why}, and none in {directory()}")


def place(path: str | Path | None) -> Path:
    """Where a run of that name is written; the name is taken as it is, dots included.

    Args:
        path: a file, a name in the directory of runs, or None for a name made of the time.

    >>> place("runs/lr0.01").as_posix()
    'runs/lr0.01.db'
    """
    if path is None:
        name = datetime.now().strftime("%Y%m%d-%H%M%S")
        return _unused(directory() / f"{name}-{os.getpid()}{SUFFIX}")
    path = Path(path)
    if path.suffix == SUFFIX:
        return path
    named = path.with_name(path.name + SUFFIX)
    return directory() / named if path.parent == Path() else named


def _unused(path: Path) -> Path:
    """The path, or the first of path-2, path-3 ... that no file has."""
    count, found = 1, path
    while found.exists():
        count += 1
        found = path.with_stem(f"{path.stem}-{count}")
    return found


def runs(folder: str | Path | None = None) -> list[Path]:
    """The files of all runs in a folder, the newest first; anything but a regular file is left out.

    Args:
        folder: where to look; the directory of runs by default.
    """
    where = directory() if folder is None else Path(folder)
    found = [(changed(path), path) for path in where.glob(f"*{SUFFIX}") if is_regular(path)]
    return [path for _, path in sorted(found, key=lambda pair: -pair[0])]


def is_regular(path: Path) -> bool:
    """True if the path is a file with content, and not a folder, pipe, device or broken link.

    Args:
        path: the path.
    """
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except (OSError, ValueError):  # not there any more, not allowed, or no name of a file
        return False


def changed(path: Path) -> float:
    """When the file was last written; 0 if it has gone.

    Args:
        path: the file.
    """
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def is_run(path: Path) -> bool:
    """True if the file is a run store, judged by its first bytes and then by its metadata.

    Args:
        path: the file.
    """
    if path.suffix != SUFFIX or not is_regular(path):
        return False
    try:
        with path.open("rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                return False
        with closing(connect(path)) as db:
            found = db.execute("SELECT value FROM meta WHERE key = 'format'").fetchone()
    except (OSError, sqlite3.Error):
        return False
    return found is not None and found[0] == json.dumps(FORMAT)


def connect(path: Path) -> sqlite3.Connection:
    """A connection that only reads; also in a folder that cannot be written.

    Args:
        path: the file of a run.
    """
    address = path.resolve().as_uri()
    db = sqlite3.connect(f"{address}?mode=ro", uri=True, timeout=30)
    try:
        db.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.OperationalError:  # no room for the index of its log: read the file as it is
        db.close()
        db = sqlite3.connect(f"{address}?mode=ro&immutable=1", uri=True, timeout=30)
    return db


def meta(db: sqlite3.Connection, path: Path) -> dict[str, Any]:
    """The metadata of a run; raises if the file is something else.

    Args:
        db: a connection to it.
        path: the file, for messages.
    """
    try:
        found = {k: json.loads(v) for k, v in db.execute("SELECT key, value FROM meta")}
    except (sqlite3.Error, ValueError, TypeError, RecursionError) as error:
        raise RunError(f"{path} is not a run of attentropy ({error})") from error
    if found.get("format") != FORMAT:
        raise RunError(f"{path} is not a run of attentropy")
    if found.get("version") != VERSION:
        version = found.get("version")
        raise RunError(f"{path} has version {version}; this attentropy reads {VERSION}")
    return found


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """One consistent view of the file inside the block; a damaged file raises RunError.

    Args:
        path: the file of a run.
    """
    try:
        with closing(connect(path)) as db:
            db.execute("BEGIN")
            yield db
    except RunError:
        raise
    except sqlite3.DatabaseError as error:
        code = getattr(error, "sqlite_errorcode", None)  # errors of the Python module have none
        if code == sqlite3.SQLITE_NOTADB:
            raise RunError(f"{path} is not a run of attentropy ({error})") from error
        raise RunError(f"{path} cannot be read: {error}") from error
    except (sqlite3.Error, OSError, LookupError, ValueError, TypeError, RecursionError) as error:
        raise RunError(f"{path} cannot be read: {error}") from error
