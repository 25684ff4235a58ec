"""Peak memory of a call above the level before it, from the operating system."""

import gc
import threading
import time
from collections.abc import Callable
from pathlib import Path

_STATUS = Path("/proc/self/statm")


def peak_extra(call: Callable[[], None]) -> float | None:
    """MiB at the peak of a call above the level before it; None without /proc.

    Args:
        call: what is measured.
    """
    if not _STATUS.exists():
        return None
    gc.collect()
    before, top, done = _resident(), [0], threading.Event()

    def watch() -> None:
        while not done.is_set():
            top[0] = max(top[0], _resident())
            time.sleep(0.0005)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    call()
    done.set()
    watcher.join()
    return max(0, top[0] - before) / 256


def _resident() -> int:
    """Resident pages of 4 KiB."""
    return int(_STATUS.read_text().split()[1])
