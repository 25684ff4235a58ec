"""Files that are written completely or not at all: first under another name, then renamed."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from attentropy.scans.errors import NoSuchScan, ScanError
from attentropy.scans.schema import Scan, decode, encode


def write_atomically(path: Path, data: bytes | str) -> None:
    """Write `data` to `path`; after a failure the old file is still there, or no file.

    Args:
        path: the file.
        data: its content; a string is written in UTF-8, with "?" for what UTF-8 does not have.
    """
    content = data.encode("utf-8", "replace") if isinstance(data, str) else data
    folder = path.parent
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=folder)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise


def save(folder: Path, scan: Scan) -> Path:
    """Write scan.json into `folder`.

    Args:
        folder: where scan.json goes.
        scan: what to write.
    """
    path = folder / "scan.json"
    write_atomically(path, encode(scan))
    return path


def load(path: Path) -> Scan:
    """Read a scan.json, or the one inside a folder.

    Args:
        path: a scan.json, or a folder with one.
    """
    inside = path / "scan.json" if path.is_dir() else path
    try:
        data = inside.read_bytes()
    except FileNotFoundError as error:
        raise NoSuchScan("{path} does not exist", path=inside) from error
    return decode(data, name=str(inside))


COMPARED = "compared"
"""The folder beside a scan.json that holds the scan it is shown beside, by its name."""


def save_compared(folder: Path, name: str, other: Scan) -> None:
    """Keep the scan that the one in `folder` is compared with, so that later reports have it.

    Args:
        folder: of the scan.
        name: how the other scan is called.
        other: the other scan.
    """
    forget_compared(folder)
    (folder / COMPARED).mkdir(exist_ok=True)
    write_atomically(folder / COMPARED / f"{name}.json", encode(other))


def load_compared(folder: Path) -> tuple[str, Scan] | None:
    """The scan that the one in `folder` is compared with, and its name; None if there is none.

    Args:
        folder: of the scan.
    """
    found = sorted((folder / COMPARED).glob("*.json"))
    return (found[0].stem, load(found[0])) if found else None


def forget_compared(folder: Path) -> None:
    """Remove the comparison of an earlier scan in `folder`.

    Args:
        folder: of the scan.
    """
    for path in (folder / COMPARED).glob("*.json"):
        path.unlink()
    with suppress(OSError):
        (folder / COMPARED).rmdir()


def folder_name(path: Path) -> str:
    """How the scan at `path` is called by its place: the folder's name, or the file's.

    Args:
        path: a folder with a scan.json, or a file.

    >>> folder_name(Path("/runs/before/scan.json")), folder_name(Path("/runs/gpt.scan.json"))
    ('before', 'gpt')
    """
    whole = path.resolve()
    if whole.is_dir():
        return whole.name
    return whole.parent.name if whole.name == "scan.json" else whole.name.split(".")[0]


@contextmanager
def prepared(folder: Path) -> Iterator[None]:
    """Make `folder` and see that it can be written, before any work is done inside the block.

    If the block fails, folders that were made here and are still empty are removed.

    Args:
        folder: where results will go.
    """
    made: list[Path] = []
    try:
        _make(folder, made)
        yield
    except BaseException:
        for one in made:
            with suppress(OSError):
                one.rmdir()
        raise


def _make(folder: Path, made: list[Path]) -> None:
    """Make the folder; those that were not there are added to `made`, innermost first."""
    try:
        made += [one for one in (folder, *folder.parents) if not one.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except (FileExistsError, NotADirectoryError) as error:
        raise ScanError("{out} {folder} is not a folder", folder=folder) from error
    except OSError as error:
        why = error.strerror
        text = "{out} {folder} cannot be written: {why}"
        raise ScanError(text, folder=folder, why=why) from error


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
