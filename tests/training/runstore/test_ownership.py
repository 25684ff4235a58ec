import os
import signal
import socket
import subprocess
import sys

import pytest

from attentropy.training.runstore import RunError, RunStore, read

HOLD = """
import sys, time
from attentropy.training.runstore import RunStore
store = RunStore(sys.argv[1])
print("open", flush=True)
time.sleep(60)
"""


def held(path):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "open\n"
    return process


def test_a_second_writer_is_refused_by_the_name_of_the_first_and_a_dead_one_is_replaced(tmp_path):
    path = tmp_path / "run.db"
    first = held(path)
    with first.stdout:
        who = f"process {first.pid} on {socket.gethostname()}"
        with pytest.raises(RunError, match=rf"run\.db is being written by {who}"):
            RunStore(path)
        assert read(path).running
        first.send_signal(signal.SIGKILL)
        first.wait()
    assert not read(path).running
    RunStore(path).close()


def test_one_process_cannot_open_a_run_twice(tmp_path):
    path = tmp_path / "run.db"
    store = RunStore(path)
    with pytest.raises(RunError, match=f"written by process {os.getpid()}"):
        RunStore(path)
    store.close()
    store = RunStore(path)
    del store  # a store that nobody holds any more can be opened again
    RunStore(path).close()
    assert "run.db-owner" not in os.listdir(tmp_path)


def test_reading_needs_no_ownership(tmp_path):
    store = RunStore(tmp_path / "run.db")
    assert read(store.path).steps == []
    store.close()
