import math
import os
import sqlite3
from contextlib import closing, suppress

import pytest

from attentropy.training.runstore import RunError, RunStore, read, samples
from tests.training.runstore.test_writer import sample


@pytest.fixture
def run(tmp_path):
    store = RunStore(tmp_path / "run.db")
    for step in range(20):
        store(sample(float(step), loss=float(step)), step)
    store.gap(30, 40, "no room")
    store.close()
    return store.path


def test_the_newest_samples_alone(run):
    found = read(run, last=3)
    assert found.steps == [17, 18, 19]
    assert [step for step, _ in found.losses] == [17, 18, 19]
    assert found.total == 20
    assert read(run, last=0).steps == []
    assert read(run).gaps == [(30, 40, "no room")]


def test_samples_come_one_by_one(run):
    found = list(samples(run))
    assert [step for step, _, _ in found] == list(range(20))
    assert [loss for _, loss, _ in found] == list(range(20))


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("samples", "numbers", b"abc"),
        ("samples", "layout", 99),
        ("alerts", "alert", "{"),
        ("meta", "value", "{"),
        ("layouts", "layers", "[7]"),
        ("layouts", "statistics", "3"),
        ("layers", "heads", "many"),
    ],
)
def test_damaged_content_is_one_sentence(run, table, column, value):
    with closing(sqlite3.connect(run)) as db, db:
        if table == "alerts":
            db.execute("INSERT INTO alerts VALUES (0, 'x', '{')")
        db.execute(f"UPDATE {table} SET {column} = ?", (value,))
    with pytest.raises(RunError, match=r"run\.db (cannot be read|is not a run|holds an alert)"):
        read(run)


def test_flipped_bits_never_end_in_another_error(run, tmp_path):
    whole = run.read_bytes()
    for i in range(150):
        damaged = bytearray(whole)
        damaged[(i * 7919) % len(whole)] ^= 1 << (i % 8)
        path = tmp_path / "damaged.db"
        path.write_bytes(damaged)
        with suppress(RunError):
            read(path)


def test_a_folder_that_cannot_be_written_is_read(run):
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    run.parent.chmod(0o500)
    try:
        assert read(run).total == 20
    finally:
        run.parent.chmod(0o700)


def test_a_number_that_is_missing_is_not_a_number(run):
    assert math.isnan(read(run, last=1).metrics["output_norm"][0][0][0])
