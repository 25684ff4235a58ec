import math
import sqlite3

import numpy as np
import pytest

from attentropy.training.metrics import Metrics
from attentropy.training.runstore import RunStore, losses, read
from attentropy.training.runstore.frames import FAN


@pytest.fixture
def db():
    found = sqlite3.connect(":memory:")
    for table in losses.TABLES:
        found.execute(table)
    yield found
    found.close()


def test_all_losses_are_read_when_nothing_is_said(db):
    for step in range(100):
        losses.write(db, 3 * step, float(step))
    assert losses.read(db) == [(3 * step, float(step)) for step in range(100)]


@pytest.mark.parametrize("count", [1, 7, 8, 9, 64, 700])
def test_a_long_curve_is_made_of_exact_means_and_ends_with_the_newest_loss(db, count):
    values = np.random.default_rng(count).normal(size=count).tolist()
    for step, loss in enumerate(values):
        losses.write(db, step, loss)
    found = losses.read(db, most=20)
    assert len(found) <= 20 + 3 * FAN
    assert found[-1][0] == count - 1
    first = 0
    for last, mean in found:
        assert mean == pytest.approx(np.mean(values[first : last + 1]), rel=1e-12)
        first = last + 1


def test_losses_that_are_no_numbers_do_not_count_in_means(db):
    for step in range(FAN):
        losses.write(db, step, math.nan if step % 2 else 4.0)
    for step in range(FAN, 2 * FAN):
        losses.write(db, step, math.nan)
    found = losses.read(db, most=2)
    assert found[0] == (FAN - 1, 4.0)
    assert found[1][0] == 2 * FAN - 1
    assert math.isnan(found[1][1])


def test_a_run_that_goes_back_has_the_means_of_what_it_says_now(db):
    for step in range(200):
        losses.write(db, step, 1.0)
    for step in range(50, 300):
        losses.write(db, step, 2.0)
    values = np.array([1.0] * 50 + [2.0] * 250)
    first = 0
    for last, mean in losses.read(db, most=10):
        assert mean == pytest.approx(values[first : last + 1].mean())
        first = last + 1
    assert first == 300


def test_the_newest_losses_come_in_order(db):
    for step in range(20):
        losses.write(db, step, float(step))
    assert losses.newest(db, 3) == [(17, 17.0), (18, 18.0), (19, 19.0)]


def test_a_page_reads_means_of_a_long_run(tmp_path):
    store = RunStore(tmp_path / "long.db")
    for step in range(2 * losses.MOST):
        store.loss(step, float(step % 2))
    store(Metrics({}), 2 * losses.MOST)
    store.close()
    found = read(store.path, most=100).losses
    assert found[0] == (FAN - 1, 0.5)
    assert len(found) == 2 * losses.MOST // FAN
    assert len(read(store.path).losses) == 2 * losses.MOST


def test_counting_samples_does_not_read_their_numbers(tmp_path):
    store = RunStore(tmp_path / "run.db")
    plan = store._db.execute("EXPLAIN QUERY PLAN SELECT count(*) FROM samples").fetchall()
    store.close()
    assert "COVERING INDEX" in plan[0][-1]
