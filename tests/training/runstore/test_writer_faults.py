"""The store under fire: kills while it is opened, and a disk without room."""

import os
import signal
import subprocess
import sys
import time

import pytest

from attentropy.training.runstore import RunStore, read

OPEN = """
import sys
from attentropy.training.runstore import RunStore
print("ready", flush=True)
sys.stdin.readline()
store = RunStore(sys.argv[1])
store.close()
"""
FULL = """
import resource, signal, sys, warnings
from attentropy.training.guard import Guard
from attentropy.training.runstore import RunStore, read
from tests.training.runstore.test_writer import sample
store = RunStore(sys.argv[1])
guard = Guard(store)
said = []
warnings.showwarning = lambda message, *_: said.append(str(message))
warnings.simplefilter("always")
for step in range(100):
    room = 1 << 16 if 30 <= step < 60 else resource.RLIM_INFINITY
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
    guard.write(sample(float(step)), step) if step % 2 else guard.loss(step, 1.0)
guard.close()
run = read(sys.argv[1])
print(len(said), run.gaps[0][:2], run.steps[0], run.steps[-1], len(run.steps))
"""


def kill_while_opening(path, delay: float) -> None:
    command = [sys.executable, "-c", OPEN, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        process.stdin.write(b"\n")
        process.stdin.flush()
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)


@pytest.mark.parametrize(
    "kills", [4, pytest.param(150, marks=pytest.mark.slow, id="many")], ids=str
)
def test_a_store_that_was_killed_while_it_was_opened_can_be_opened(kills, tmp_path):
    for i in range(kills):
        path = tmp_path / f"{i}.db"
        kill_while_opening(path, 0.02 * i / kills)
        RunStore(path).close()
        assert read(path).steps == []


def test_no_room_is_one_warning_and_a_marked_gap(tmp_path):
    command = [sys.executable, "-c", FULL, str(tmp_path / "full.db")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=os.getcwd(), check=False)
    assert done.returncode == 0, done.stderr
    warned, first, last, steps = done.stdout.split(" ", 1)[0], *_numbers(done.stdout)
    assert warned == "1"
    assert 30 <= first <= last < 60
    assert steps == [1, 99, 50 - len([s for s in range(first, last + 1) if s % 2])]


def _numbers(text: str) -> tuple[int, int, list[int]]:
    first, last, *steps = (int(word.strip("(),")) for word in text.split()[1:])
    return first, last, steps
