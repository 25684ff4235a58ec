"""Means by position against slices by hand."""

import pytest
import torch

from attentropy.core.errors import ArgumentError
from attentropy.models.losses.buckets import by_position, edges


@pytest.mark.parametrize(("length", "count"), [(2, 24), (3, 24), (25, 24), (100, 7), (12288, 24)])
def test_edges_cover_every_position_once(length, count):
    found = edges(length, count)
    assert (found[0], found[-1]) == (1, length)
    assert found == sorted(set(found))


def test_a_bucket_is_the_mean_of_its_positions():
    losses = torch.rand(3, 199, generator=torch.Generator().manual_seed(0))
    first, second = by_position(losses, [1, 65, 200])
    assert (first.start, first.stop, second.start, second.stop) == (1, 65, 65, 200)
    assert first.loss == pytest.approx(losses[:, :64].double().mean())
    assert second.loss == pytest.approx(losses[:, 64:].double().mean())
    spread = losses[:, :64].double().mean(1).std() / 3**0.5
    assert first.error == pytest.approx(spread)


def test_one_stretch_has_no_error():
    assert by_position(torch.rand(1, 9))[0].error is None


@pytest.mark.parametrize("bounds", [[1], [0, 5], [1, 11], [5, 5], [7, 3]])
def test_bounds_outside_of_the_window_are_refused(bounds):
    with pytest.raises(ArgumentError, match="bounds must be increasing positions between 1 and 10"):
        by_position(torch.rand(2, 9), bounds)
