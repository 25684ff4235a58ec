"""The scans and runs under a folder: found, named and read, never written.

Only what a search of the folder finds has a name here, so a request cannot point elsewhere.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from attentropy.core.errors import AttentropyError
from attentropy.core.notebook.words import plural
from attentropy.report.payload import scan_page
from attentropy.report.run import NUMBERS, headline
from attentropy.scans.errors import ScanError
from attentropy.scans.judging import words
from attentropy.scans.schema import Scan, decode
from attentropy.scans.store import folder_name, load_compared
from attentropy.training.runstore import StoredRun, is_run, read
from attentropy.training.runstore.files import changed, is_regular

DEPTH = 4
MOST = 500
LARGEST = 1 << 28
"""Bytes of a scan.json that is read; those of models with thousands of heads stay far below."""


@dataclass(frozen=True)
class ShelfEntry:
    """One file; `id` is its path below the folder, with / on every system."""

    kind: Literal["scan", "run"]
    id: str
    path: Path

    @property
    def stamp(self) -> str:
        """Changes when the file does (a run's newest samples may still be in its log)."""
        log = self.path.with_name(self.path.name + "-wal")
        stats = [_stat(path) for path in (self.path, log)]
        return "-".join(f"{stat.st_mtime_ns:x}.{stat.st_size:x}" for stat in stats if stat)


def entries(root: Path) -> list[ShelfEntry]:
    """Every scan and run at most `DEPTH` folders below root, newest first, links not followed."""
    found = sorted(_search(root), key=lambda entry: changed(entry.path), reverse=True)
    return found[:MOST]


def find(root: Path, kind: str, name: str) -> ShelfEntry | None:
    """The entry of that name, or None.

    Args:
        root: the folder.
        kind: "scan" or "run".
        name: the path of the file below root.
    """
    return next((one for one in entries(root) if one.kind == kind and one.id == name), None)


def describe(entry: ShelfEntry) -> dict[str, Any]:
    """What the list shows; a file that cannot be read says why."""
    shown = {"kind": entry.kind, "id": entry.id, "changed": changed(entry.path)}
    try:
        more = _scan(load_scan(entry)) if entry.kind == "scan" else _run(load_run(entry))
    except (AttentropyError, OSError) as error:
        more = {
            "name": entry.id,
            "headline": f"Cannot be read: {error}",
            "facts": [],
            "running": False,
        }
    return {**shown, **more}


def load_scan(entry: ShelfEntry) -> Scan:
    """Read the entry's scan."""
    size = entry.path.stat().st_size
    if size > LARGEST:
        raise ScanError("{file} has {size:,} bytes: too many for a scan", file=entry.id, size=size)
    return decode(entry.path.read_bytes(), name=entry.id)


def page_of(scan: Scan, path: Path, *, live: str = "") -> str:
    """The report of a stored scan, beside the scan that it was compared with.

    Args:
        scan: what was read.
        path: the scan.json that it was read from, or its folder.
        live: as for scan_page().
    """
    folder = path if path.is_dir() else path.parent
    kept = load_compared(folder) if path in (folder, folder / "scan.json") else None
    name, other = kept or ("", None)
    names = (folder_name(path), name) if other is not None else ()
    return scan_page(scan, other, names=names, live=live)


def load_run(entry: ShelfEntry) -> StoredRun:
    """Read the entry's run."""
    return read(entry.path, most=NUMBERS)


def _search(root: Path) -> Iterator[ShelfEntry]:
    base = len(root.parts)
    for folder, folders, files in os.walk(root):
        here = Path(folder)
        deep = len(here.parts) - base >= DEPTH
        folders[:] = [] if deep else sorted(f for f in folders if not f.startswith("."))
        for name in sorted(files):
            path = here / name
            if path.is_symlink() or not is_regular(path):
                continue
            if name == "scan.json" or name.endswith(".scan.json"):
                yield ShelfEntry("scan", path.relative_to(root).as_posix(), path)
            elif is_run(path):
                yield ShelfEntry("run", path.relative_to(root).as_posix(), path)


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None


def _scan(scan: Scan) -> dict[str, Any]:
    lengths = ", ".join(f"{length:,}" for length in scan.lengths)
    return {
        "name": scan.model.name,
        "headline": words.headline(scan),
        "facts": [plural(scan.heads, "head"), f"lengths {lengths}", scan.created],
        "running": not scan.complete,
    }


def _run(run: StoredRun) -> dict[str, Any]:
    step = f"step {run.steps[-1]:,}" if run.steps else "no sample yet"
    return {
        "name": run.name,
        "headline": headline(run),
        "facts": [
            plural(sum(run.heads), "head"),
            step,
            plural(len(run.alerts), "alarm"),
        ],
        "running": run.running,
    }
