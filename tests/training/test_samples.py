import weakref

import numpy as np
import pytest

from attentropy.training.samples import Columns, History, Sample, courses
from tests.rows import head_row


def sample(step, heads=(0, 1), **changes):
    return Sample(step, tuple(head_row(h, entropy=float(10 * step + h), **changes) for h in heads))


def test_columns_are_fields_of_the_rows():
    rows = sample(3).rows
    assert Columns(rows)["entropy"].tolist() == [30.0, 31.0]
    assert Columns(rows)["head"].dtype == np.float64
    with pytest.raises(AttributeError, match="nothing"):
        Columns(rows)["nothing"]


def test_courses_follow_the_heads_of_the_last_sample():
    samples = [sample(0, (0, 1, 2)), sample(1, (2, 0)), sample(2, (1, 2))]
    expected = [[1.0, 2.0], [np.nan, 12.0], [21.0, 22.0]]
    np.testing.assert_array_equal(courses(samples, "entropy"), expected)


def test_heads_of_different_layers_are_different():
    first = Sample(0, (head_row(0, index=0, entropy=1.0), head_row(0, index=1, entropy=2.0)))
    second = Sample(1, (head_row(0, index=1, entropy=3.0),))
    assert courses([first, second], "entropy").tolist() == [[2.0], [3.0]]


def test_a_sample_knows_its_heads():
    assert sample(1).head((0, 1)).entropy == 11.0
    assert sample(1).head((1, 1)) is None


@pytest.mark.parametrize("count", range(12))
def test_a_history_keeps_both_ends(count):
    history = History(first=2, latest=4)
    for step in range(count):
        history.append(Sample(step, ()))
    steps = [one.step for one in history]
    every = list(range(count))
    assert steps == (every if count <= 6 else [*every[:2], *every[-4:]])
    assert len(history) == len(steps)
    assert [one.step for one in history[-3:]] == steps[-3:]
    if count:
        assert (history[0].step, history[-1].step) == (0, count - 1)


def test_a_history_lets_old_samples_go():
    history, born = History(first=2, latest=4), []
    for step in range(50):
        history.append(Sample(step, ()))
        born.append(weakref.ref(history[-1]))
    assert sum(one() is not None for one in born) == 6
