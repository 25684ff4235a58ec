import contextlib
import json
import math
import os
import signal
import sqlite3
import subprocess
import sys
import time

import pytest

from attentropy.core.statistics import NAMES
from attentropy.training import runstore
from attentropy.training.alarms import Alert
from attentropy.training.metrics import Metrics
from attentropy.training.runstore import RunError, RunStore
from attentropy.training.runstore.files import connect
from tests.rows import head_row


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.setenv("ATTENTROPY_RUNS", str(tmp_path))


def sample(value, **more):
    rows = [head_row(h, heads=3, entropy=value + h, output_norm=math.nan, layer=f"l{i}", index=i)
            for i in range(2) for h in range(3)]  # fmt: skip
    return Metrics({}, rows=rows, **more)


def test_what_is_written_is_read():
    store = RunStore("one", notes={"lr": 0.1})
    alert = Alert(10, "logit growth", "critical", ((0, 1), (1, 2)), "logits reached 60", 10)
    store(sample(1.0, loss=3.5), 0)
    store.loss(5, 3.0)
    store(sample(2.0, alerts=[alert], loss=math.nan), 10)
    run = runstore.read("one")
    assert run.running
    assert run.steps == [0, 10]
    assert run.layers == ["l0", "l1"]
    assert run.heads == [3, 3]
    assert run.metrics["entropy"][1][0] == [2.0, 3.0, 4.0]
    assert all(math.isnan(n) for n in run.metrics["output_norm"][0][0])
    assert run.losses[:2] == [(0, 3.5), (5, 3.0)]
    assert math.isnan(run.losses[2][1])
    assert run.alerts == [alert]
    assert run.notes["lr"] == 0.1
    store.close()
    assert not runstore.read("one").running
    assert runstore.read("one", last=1).steps == [10]


def test_every_statistic_of_the_table_is_stored():
    store = RunStore("all")
    numbers = {name: float(i) for i, name in enumerate(NAMES)}
    store(Metrics({}, rows=[head_row(0, heads=1, **numbers)]), 0)
    run = runstore.read("all")
    assert {name: table[0][0][0] for name, table in run.metrics.items()} == numbers
    store.close()


def test_an_alert_that_cannot_be_read_is_named(tmp_path):
    store = RunStore("odd")
    store(sample(1.0), 0)
    store.close()
    with contextlib.closing(sqlite3.connect(tmp_path / "odd.db")) as db, db:
        db.execute("INSERT INTO alerts VALUES (0, 'x', '{\"step\": \"a\"}')")
    with pytest.raises(RunError, match=r"odd\.db holds an alert that cannot be read: .*\$\.step"):
        runstore.read("odd")


def test_other_files_are_no_runs(tmp_path):
    RunStore("one").close()
    assert runstore.is_run(tmp_path / "one.db")
    with contextlib.closing(sqlite3.connect(tmp_path / "other.db")) as db, db:
        db.execute("CREATE TABLE meta (key TEXT, value TEXT)")
    (tmp_path / "text.db").write_text("no database")
    (tmp_path / "one.db").rename(tmp_path / "one.sqlite")
    others = ("other.db", "text.db", "absent.db", "one.sqlite")
    assert not any(runstore.is_run(tmp_path / name) for name in others)
    assert not runstore.is_run(tmp_path)


def test_a_run_goes_on_and_replaces_steps_that_come_again():
    store = RunStore("again")
    for step in (0, 10, 20):
        store(sample(1.0, loss=1.0), step)
    store.close()
    store = RunStore("again")
    assert runstore.read("again").running
    store(sample(7.0, loss=0.5), 20)
    store(sample(8.0), 30)
    run = runstore.read("again")
    assert run.steps == [0, 10, 20, 30]
    assert [table[0][0] for table in run.metrics["entropy"]] == [1.0, 1.0, 7.0, 8.0]
    assert dict(run.losses)[20] == 0.5


WRITER = """
import sys
from tests.training.runstore.test_writer import sample
from attentropy.training.runstore import RunStore
store = RunStore(sys.argv[1])
step = 0
while True:
    store(sample(float(step), loss=float(step)), step)
    print(step, flush=True)
    step += 1
"""


def test_a_killed_run_is_whole_up_to_its_last_sample_and_goes_on(tmp_path):
    path = tmp_path / "killed.db"
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=os.getcwd(),
    )
    written = -1
    deadline = time.monotonic() + 60
    while written < 25 and time.monotonic() < deadline:
        written = int(process.stdout.readline())
        if written == 10:  # readable while it is written
            seen = runstore.read(path)
            assert seen.running
            assert len(seen.steps) >= 11
    process.send_signal(signal.SIGKILL)
    said = [int(line) for line in process.stdout]
    process.wait()
    process.stdout.close()
    last = max([written, *said])
    run = runstore.read(path)
    assert not run.running
    assert run.steps[-1] >= last
    for i, step in enumerate(run.steps):
        assert run.metrics["entropy"][i][1] == [step, step + 1, step + 2]
    assert sqlite3.connect(path).execute("PRAGMA integrity_check").fetchone() == ("ok",)
    store = RunStore(path)
    store(sample(0.0), 1000)
    store.close()
    assert runstore.read(path).steps[-1] == 1000


def test_readers_and_a_writer_do_not_block_each_other():
    store = RunStore("busy")
    store(sample(1.0), 0)
    reader = connect(runstore.find("busy"))
    reader.execute("BEGIN")
    assert reader.execute("SELECT count(*) FROM samples").fetchone() == (1,)
    store(sample(2.0), 1)
    assert reader.execute("SELECT count(*) FROM samples").fetchone() == (1,)
    reader.close()
    assert runstore.read("busy").steps == [0, 1]


def test_places_of_runs(tmp_path):
    assert RunStore("name").path == tmp_path / "name.db"
    assert RunStore(tmp_path / "sub" / "x.db").path == tmp_path / "sub" / "x.db"
    assert RunStore().path.parent == tmp_path
    assert {path.stem for path in runstore.runs()} >= {"name"}


def test_files_that_are_no_runs_are_refused(tmp_path):
    with pytest.raises(RunError, match="there is no run 'nothing'"):
        runstore.read("nothing")
    (tmp_path / "text.db").write_text("hello" * 100)
    with pytest.raises(RunError, match=r"text.db is not a run of attentropy"):
        runstore.read("text")
    with pytest.raises(RunError, match=r"text.db is not a run of attentropy"):
        RunStore("text")
    other = sqlite3.connect(tmp_path / "other.db")
    other.execute("CREATE TABLE meta (key, value)")
    other.commit()
    other.close()
    with pytest.raises(RunError, match=r"other.db is not a run of attentropy"):
        runstore.read("other")
    RunStore("old").close()
    db = sqlite3.connect(tmp_path / "old.db")
    db.execute("UPDATE meta SET value = ? WHERE key = 'version'", (json.dumps(99),))
    db.commit()
    db.close()
    with pytest.raises(RunError, match="has version 99; this attentropy reads 4"):
        runstore.read("old")


def test_a_store_can_be_closed_twice(tmp_path):
    store = RunStore(tmp_path / "run.db")
    store.close()
    store.close()
    with RunStore(tmp_path / "run.db")._writing():  # others may write it
        pass
