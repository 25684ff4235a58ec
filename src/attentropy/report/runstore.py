"""A run store (SQLite, written by observe.record) -> a Run for the page."""

from pathlib import Path

from attentropy.report.run import Run

SUFFIXES = (".db", ".sqlite", ".sqlite3")
MAGIC = b"SQLite format 3\x00"


def is_run(path: Path) -> bool:
    """Does the file look like a run store?"""
    if path.suffix not in SUFFIXES:
        return False
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def read_run(path: Path) -> Run:
    """Read the whole run."""
    raise FileNotFoundError(path)
