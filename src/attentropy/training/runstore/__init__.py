"""The run store: one SQLite file per training run, readable while it grows.

Every sample is one transaction in write-ahead mode, so a reader never sees half of it and a killed
process loses at most the sample that it was writing. One process writes a run at a time. Opening
the file of an earlier run continues it; a step that is recorded again replaces the old one. Blocks
of 8, 64, 512 ... samples are kept as their least, mean and largest numbers, so that a long run is
shown without reading all of it.
"""

from attentropy.training.runstore.files import NoSuchRun, RunError, directory, find, is_run, runs
from attentropy.training.runstore.reader import StoredRun, read, samples
from attentropy.training.runstore.writer import RunStore

__all__ = [
    "NoSuchRun",
    "RunError",
    "RunStore",
    "StoredRun",
    "directory",
    "find",
    "is_run",
    "read",
    "runs",
    "samples",
]
