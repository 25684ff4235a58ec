"""One process writes a run at a time: the lock ends with its owner, and names it.

The lock is held on a file beside the run, `<run>.db-owner`, by the operating system. A killed
process loses it at once, so that the next one can continue the run.
"""

import json
import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import IO

from attentropy.training.runstore.files import RunError

try:
    import fcntl
except ImportError:  # Windows: the lock is left out, and two writers are not told apart
    fcntl = None  # type: ignore[assignment]


class Ownership:
    """The right to write a run; raises if another store has it.

    Args:
        run: the file of the run.
    """

    def __init__(self, run: Path) -> None:
        self.path = run.with_name(run.name + "-owner")
        self._file = self._locked(run)
        self._file.truncate(0)
        about = {"pid": os.getpid(), "host": socket.gethostname()}
        self._file.write(json.dumps(about))
        self._file.flush()

    def release(self) -> None:
        """Release the lock; a second call does nothing."""
        if self._file.closed:
            return
        with suppress(OSError):
            self.path.unlink()
        if fcntl is not None:
            fcntl.flock(self._file, fcntl.LOCK_UN)  # also where a child process holds the file open
        self._file.close()

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self.release()

    def _locked(self, run: Path) -> IO[str]:
        while True:
            file = self.path.open("a+", encoding="utf-8")
            if fcntl is None:
                return file
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                owner = _owner(file)
                file.close()
                raise RunError(
                    f"{run} is being written by {owner}: close that run, or choose another name"
                ) from error
            if _is_at(file, self.path):
                return file
            file.close()  # its owner has just removed it


def _is_at(file: IO[str], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _owner(file: IO[str]) -> str:
    file.seek(0)
    try:
        found = json.loads(file.read())
        return f"process {found['pid']} on {found['host']}"
    except (ValueError, LookupError, TypeError):
        return "another process"
