import numpy as np
import pytest

from attentropy.core.statistics import NAMES
from attentropy.training.metrics import Metrics
from attentropy.training.runstore import RunStore, read, samples
from attentropy.training.runstore.files import reading
from attentropy.training.runstore.frames import FAN, Layouts, blocks_between
from tests.rows import head_row

WANTED = NAMES.index("entropy")


def rows(values, layer="l0", index=0):
    heads = len(values)
    return [
        head_row(h, layer=layer, index=index, heads=heads, entropy=v) for h, v in enumerate(values)
    ]


def blocks(path, level):
    with reading(path) as db:
        return blocks_between(db, Layouts.of(db, NAMES), level, -1, 10**9)


def test_blocks_hold_the_least_mean_and_largest_number_of_each_head(tmp_path):
    store = RunStore(tmp_path / "run.db")
    values = np.random.default_rng(0).normal(size=(200, 2))
    values[5, 0] = np.nan
    for step, pair in enumerate(values):
        store(Metrics({}, rows=rows(pair)), 10 * step)
    store.close()
    for level, size in ((1, FAN), (2, FAN**2)):
        found = blocks(store.path, level)
        assert len(found) == 200 // size
        for i, frame in enumerate(found):
            part = values[i * size : (i + 1) * size].astype("f4")
            assert (frame.first, frame.last) == (10 * i * size, 10 * ((i + 1) * size - 1))
            np.testing.assert_allclose(frame.numbers[0, WANTED], np.nanmin(part, 0))
            np.testing.assert_allclose(frame.numbers[2, WANTED], np.nanmax(part, 0))
            if level == 1:
                np.testing.assert_allclose(frame.numbers[1, WANTED], np.nanmean(part, 0), rtol=1e-5)


def test_a_long_run_is_read_as_blocks_that_cover_it_once(tmp_path):
    store = RunStore(tmp_path / "run.db")
    for step in range(163):
        store(Metrics({}, rows=rows([float(step)])), step)
    store.close()
    run = read(store.path, most=4 * len(NAMES))
    assert run.total == 163
    assert run.steps == [63, 127, 135, 143, 151, 159, 160, 161, 162]
    assert run.lows["entropy"] == [0, 64, 128, 136, 144, 152, 160, 161, 162]
    assert run.highs["entropy"] == run.steps
    assert run.metrics["entropy"][0] == [[pytest.approx(31.5)]]
    assert read(store.path).steps == list(range(163))


def test_a_run_that_goes_back_makes_its_blocks_again(tmp_path):
    store = RunStore(tmp_path / "run.db")
    for step in range(40):
        store(Metrics({}, rows=rows([1.0])), step)
    for step in range(12, 40):
        store(Metrics({}, rows=rows([5.0])), step)
    store.close()
    run = read(store.path, most=5 * len(NAMES))
    assert run.steps == [7, 15, 23, 31, 39]
    assert [frame[0][0] for frame in run.metrics["entropy"]] == [1.0, 3.0, 5.0, 5.0, 5.0]


def test_layers_may_come_late_or_not_in_every_sample(tmp_path):
    store = RunStore(tmp_path / "run.db")
    store(Metrics({}, rows=rows([1.0, 2.0])), 0)
    store(Metrics({}, rows=[*rows([3.0], "l1", 1)]), 1)
    store(Metrics({}, rows=[*rows([4.0, 5.0]), *rows([6.0], "l1", 1)]), 2)
    store.close()
    tables = np.stack([table[WANTED] for _, _, table in samples(store.path)])
    np.testing.assert_array_equal(tables, [[1, 2, np.nan], [np.nan, np.nan, 3], [4, 5, 6]])
    assert read(store.path).layers == ["l0", "l1"]


def test_a_sample_in_which_no_attention_ran_is_read(tmp_path):
    store = RunStore(tmp_path / "run.db")
    for step in range(2 * FAN):
        store(Metrics({}, rows=[] if step < FAN else rows([1.0, 2.0])), step)
    store.close()
    found = read(store.path)
    assert found.steps == list(range(2 * FAN))
    assert np.isnan(found.metrics["entropy"][0][0]).all()
    assert found.metrics["entropy"][-1] == [[1.0, 2.0]]
    assert read(store.path, most=4).total == 2 * FAN
