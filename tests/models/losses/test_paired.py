"""Differences and their standard errors against numpy and scipy."""

import numpy as np
import pytest
import torch
from scipy import stats

from attentropy.core.errors import ArgumentError
from attentropy.models.losses.paired import paired, stretches


def test_the_error_is_that_of_the_paired_differences():
    rng = np.random.default_rng(0)
    before = rng.normal(3, 1, 12)
    after = before - 0.1 + rng.normal(0, 0.05, 12)
    found = paired(before.tolist(), torch.tensor(after))
    assert found.difference == pytest.approx((after - before).mean())
    assert found.error == pytest.approx(stats.sem(after - before))
    assert found.gain == -found.difference
    assert found.texts == 12
    assert (found.helps, found.hurts) == (True, False)


def test_tokens_of_a_text_are_averaged_first():
    before = torch.rand(5, 7, generator=torch.Generator().manual_seed(0)).double()
    after = before + torch.rand(5, 7, generator=torch.Generator().manual_seed(1))
    assert paired(before, after) == paired(before.mean(1), after.mean(1))


@pytest.mark.parametrize(
    ("after", "helps", "hurts"),
    [([1.0, 2.0], False, False), ([0.9, 1.9], True, False), ([1.1, 2.1], False, True),
     ([0.0, 2.9], False, False)],
)  # fmt: skip
def test_two_standard_errors_decide(after, helps, hurts):
    found = paired([1.0, 2.0], after)
    assert (found.helps, found.hurts) == (helps, hurts)


def test_one_text_has_no_error_and_decides_nothing():
    found = paired([3.0], [1.0])
    assert found.error is None
    assert (found.helps, found.hurts) == (False, False)
    assert str(found) == "3.000 → 1.000 (-2.000)"


def test_nan_never_helps():
    found = paired([1.0, float("nan"), 2.0], [0.0, 0.0, 0.0])
    assert (found.helps, found.hurts) == (False, False)


def test_losses_of_other_texts_are_refused():
    with pytest.raises(ArgumentError, match=r"losses of the same texts, got \[2\] and \[3\]"):
        paired([1.0, 2.0], [1.0, 2.0, 3.0])


def test_stretches_are_consecutive_and_leave_out_the_rest():
    losses = torch.arange(22.0).view(2, 11)
    assert stretches(losses, 4).tolist() == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [11, 12, 13, 14],
        [15, 16, 17, 18],
    ]
    assert stretches(losses, 100).shape == (2, 11)
