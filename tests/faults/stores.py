"""Run stores whose process is killed, whose disk is full, or whose clock runs backwards."""

import os
import random
import resource
import signal
import time
import warnings
from collections.abc import Callable
from pathlib import Path

from attentropy.training.guard import Guard
from attentropy.training.metrics import Metrics
from attentropy.training.runstore import RunError, RunStore, read
from tests.faults.outcome import Outcome
from tests.rows import head_row

STEPS = 40


def sample(value: float) -> Metrics:
    """A sample of two layers of three heads."""
    rows = [
        head_row(head, heads=3, entropy=value + head, layer=f"l{layer}", index=layer)
        for layer in range(2)
        for head in range(3)
    ]
    return Metrics({}, rows=rows)


def apart(work: Callable[[int], None]) -> tuple[int, int]:
    """Run `work` in a process of its own, with a pipe to write to; its id and the pipe's end."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            work(writing)
            os._exit(0)
        except BaseException as error:  # told to the parent by the exit code and the pipe
            os.write(writing, f" {type(error).__name__}: {error}".encode())
            os._exit(1)
    os.close(writing)
    return child, reading


def told(reading: int) -> str:
    """All that a child wrote to its pipe."""
    with os.fdopen(reading, "rb") as pipe:
        return pipe.read().decode()


def _write(path: Path, pipe: int) -> None:
    store = RunStore(path)
    for step in range(STEPS):
        store(sample(float(step)), step)
        os.write(pipe, b".")
    store.close()
    os.write(pipe, b"c")


def kills(folder: Path, count: int, draw: random.Random) -> Outcome:
    """SIGKILL while a run is opened, written and closed: what was written is there."""
    found = Outcome("kill -9 while a run is opened, written and closed")
    for i in range(count):
        path = folder / f"kill{i}.db"
        child, pipe = apart(lambda pipe, path=path: _write(path, pipe))
        time.sleep(draw.random() * 0.06)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        found.note(_missing(path, told(pipe).count(".")))
    return found


def _missing(path: Path, written: int) -> str | None:
    """What is wrong with a run that was told `written` samples, read and then gone on with."""
    try:
        RunStore(path).close()
        steps = read(path).steps
        if steps[:written] != list(range(written)):
            return f"{path.name}: {written} samples were written and {len(steps)} are there"
        with_more = RunStore(path)
        with_more(sample(0.0), STEPS + 1)
        with_more.close()
    except RunError as error:
        return f"{path.name}: {error}"
    return None if read(path).steps[-1] == STEPS + 1 else f"{path.name}: it cannot go on"


def no_room(folder: Path, count: int, draw: random.Random) -> Outcome:
    """No byte more may be written, from one of the writes on: training goes on."""
    found = Outcome("no room on the disk, at every write")
    for i in range(count):
        path = folder / f"full{i}.db"
        at = i % STEPS
        child, pipe = apart(lambda pipe, path=path, at=at: _fill(path, at, pipe))
        failed = os.waitpid(child, 0)[1]
        said = told(pipe)
        kept = [] if failed else read(path).steps
        whole = kept[-1:] == [STEPS + 9] and set(range(at)) <= set(kept)
        found.note(None if not failed and whole else f"{path.name}, write {at}: {said} {kept}")
    return found


def _fill(path: Path, at: int, pipe: int) -> None:
    """Write; the limit on the size of files stands in for the disk from write `at` to 10 on."""
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    store = RunStore(path)
    guard = Guard(store)
    for step in range(STEPS + 10):
        room = 4096 if at <= step < at + 8 else resource.RLIM_INFINITY
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
        guard.write(sample(float(step)), step)
    guard.close()


def two_writers(folder: Path, count: int, draw: random.Random) -> Outcome:
    """A second process opens the run of a first: it is refused, and the first loses nothing."""
    found = Outcome("a second writer of the same run")
    for i in range(count):
        path = folder / f"two{i}.db"
        first = RunStore(path)
        first(sample(0.0), 0)
        child, pipe = apart(lambda pipe, path=path: _write(path, pipe))
        refused = os.waitpid(child, 0)[1] != 0
        said = told(pipe)
        first(sample(1.0), 1)
        first.close()
        well = refused and f"process {os.getpid()}" in said and read(path).steps == [0, 1]
        found.note(None if well else f"{path.name}: {said}")
    return found


def clock_backwards(folder: Path, count: int, draw: random.Random) -> Outcome:
    """time.time() jumps while a run is written: order is that of steps."""
    found = Outcome("a clock that runs backwards")
    real = time.time
    for i in range(count):
        path = folder / f"clock{i}.db"
        time.time = lambda: draw.uniform(0, 4e9)
        try:
            store = RunStore(path)
            for step in range(STEPS):
                store(sample(float(step)), step)
            store.close()
        finally:
            time.time = real
        steps = read(path).steps
        found.note(None if steps == list(range(STEPS)) else f"{path.name}: {steps}")
    return found
