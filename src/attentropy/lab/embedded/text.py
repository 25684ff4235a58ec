"""The text the embedded model learns from: the King James Bible, as Debian ships it.

One verse per line, each with its reference (`Ge1:1 In the beginning ...`), 4.4 MB. The book
of Acts is held out of training; its beginning is the sample that the package ships.

    apt-get download bible-kjv bible-kjv-text     # no root needed
    dpkg-deb -x bible-kjv_*.deb root; dpkg-deb -x bible-kjv-text_*.deb root
    root/usr/bin/bible -f -l100000 -p root/usr/lib gen1:1-rev22:21
"""

import subprocess
from dataclasses import dataclass
from pathlib import Path

from attentropy.core.errors import ArgumentError, AttentropyError

PACKAGES = ("bible-kjv", "bible-kjv-text")
SOURCE = "King James Version, Debian packages bible-kjv and bible-kjv-text"
LICENCE = (
    "Public domain: the copyright for the King James Version text of the Bible is expired since "
    "the translation was done in 1611 (debian/copyright of bible-kjv-text)."
)
HELD_OUT = (b"\nActs1:1 ", b"\nRom1:1 ")
SAMPLE_BYTES = 96 * 1024


class TextUnavailableError(AttentropyError):
    """The training text could not be fetched."""


@dataclass(frozen=True)
class Corpus:
    """Text to learn from and text for judging, and the source of both."""

    train: bytes
    held_out: bytes
    source: str
    licence: str


def _run(command: list[str], directory: Path) -> bytes:
    try:
        done = subprocess.run(command, cwd=directory, check=True, capture_output=True)
    except FileNotFoundError as error:
        raise TextUnavailableError(
            f"fetching the text needs the program {command[0]!r} (Debian or Ubuntu); "
            "elsewhere pass your own with --text FILE"
        ) from error
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
        raise TextUnavailableError(
            f"{' '.join(command)} failed: {said[-1]} (is `apt-get update` recent? "
            "otherwise pass your own text with --text FILE)"
        ) from error
    return done.stdout


def fetch_text(directory: Path) -> bytes:
    """The whole text, from Debian packages downloaded into and unpacked under `directory`.

    Args:
        directory: for the packages.
    """
    directory.mkdir(parents=True, exist_ok=True)
    _run(["apt-get", "download", *PACKAGES], directory)
    for package in PACKAGES:
        newest = max(directory.glob(f"{package}_*.deb"), key=lambda path: path.stat().st_mtime)
        _run(["dpkg-deb", "-x", newest.name, "root"], directory)
    program = str((directory / "root/usr/bin/bible").resolve())
    verses = ["-f", "-l100000", "-p", "root/usr/lib", "gen1:1-rev22:21"]
    return _run([program, *verses], directory)


def split_text(text: bytes) -> tuple[bytes, bytes]:
    """(train, held out): the held-out book is cut from the middle, else the last twentieth.

    Args:
        text: the whole.
    """
    first, last = (text.find(mark) + 1 for mark in HELD_OUT)
    if 0 < first < last:
        return text[:first] + text[last:], text[first:last]
    cut = len(text) - len(text) // 20
    return text[:cut], text[cut:]


def debian_corpus(directory: Path) -> Corpus:
    """The default corpus, fetched through apt.

    Args:
        directory: for the packages.
    """
    return Corpus(*split_text(fetch_text(directory)), source=SOURCE, licence=LICENCE)


def file_corpus(path: Path) -> Corpus:
    """A text of the user; the text of the Debian packages is recognised.

    Args:
        path: of a text of at least 20,000 bytes.
    """
    text = path.read_bytes()
    if len(text) < 20_000:
        raise ArgumentError("--text", "a file of at least 20000 bytes", f"{len(text)} in {path}")
    if text.startswith(b"Ge1:1 In the beginning God") and HELD_OUT[0] in text:
        return Corpus(*split_text(text), source=SOURCE, licence=LICENCE)
    return Corpus(*split_text(text), source=path.name, licence="not recorded: a file of the user")
