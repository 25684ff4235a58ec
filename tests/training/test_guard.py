import warnings

import pytest

from attentropy.training.guard import Guard


class Full:
    """A logger whose disk has no room for some of its writes."""

    def __init__(self, *, full: set[int]) -> None:
        self.full, self.steps, self.losses, self.gaps = full, [], [], []

    def __call__(self, metrics, step):
        self._room(step)
        self.steps.append(step)

    def loss(self, step, loss):
        self._room(step)
        self.losses.append(step)

    def gap(self, *about):
        self.gaps.append(about)

    def close(self):
        raise OSError(28, "No space left on device")

    def _room(self, step):
        if step in self.full:
            raise OSError(28, "No space left on device")


def test_a_full_disk_is_one_warning_and_a_gap():
    logger = Full(full={2, 3, 4})
    guard = Guard(logger)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for step in range(7):
            if step % 2:
                guard.loss(step, 1.0)
            else:
                guard.write({}, step)
    (one,) = said
    assert "cannot write step 2" in str(one.message)
    assert "No space left on device" in str(one.message)
    assert "training goes on" in str(one.message)
    assert (logger.steps, logger.losses) == ([0, 6], [1, 5])
    assert logger.gaps == [(2, 4, "[Errno 28] No space left on device")]
    assert not guard.dropped


def test_every_gap_is_warned_of_and_marked():
    logger = Full(full={1, 3})
    guard = Guard(logger)
    for step in range(5):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            guard.write({}, step)
        assert len(said) == (step in logger.full)
    assert [gap[:2] for gap in logger.gaps] == [(1, 1), (3, 3)]


def test_a_mistake_ends_the_calls():
    calls = []

    def broken(metrics, step):
        calls.append(step)
        raise TypeError("not a number")

    guard = Guard(broken)
    with pytest.warns(RuntimeWarning, match="failed and is not called again: TypeError"):
        guard.write({}, 0)
    guard.write({}, 1)
    guard.loss(2, 1.0)
    guard.close()
    assert calls == [0]
    assert guard.dropped


def test_closing_never_raises():
    with pytest.warns(RuntimeWarning, match="could not be closed: OSError"):
        Guard(Full(full=set())).close()
    Guard(lambda metrics, step: None).close()
