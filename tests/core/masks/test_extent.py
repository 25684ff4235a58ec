"""Sizes, and indices into them."""

import pytest
import torch

from attentropy.core.errors import ArgumentError
from attentropy.core.masks.extent import Extent, Where, check_broadcast, check_table

CPU = torch.device("cpu")
EXTENT = Extent(2, 3, 4, 6, CPU)


def test_queries_are_aligned_to_the_end_of_the_keys():
    assert EXTENT.shift == 2
    assert EXTENT.positions.tolist() == [[[2, 3, 4, 5]]]
    assert Extent(1, 1, 4, 2, CPU).positions.tolist() == [[[-2, -1, 0, 1]]]


def test_indices_broadcast_to_the_whole():
    where = EXTENT.where()
    assert torch.broadcast_shapes(*(x.shape for x in where[:4])) == (2, 3, 4, 6)
    for i, (index, n) in enumerate(zip(where[:4], EXTENT[:4], strict=True)):
        assert index.flatten().tolist() == list(range(n))
        assert index.shape[i] == n
    assert where.position.flatten().tolist() == [2, 3, 4, 5]


def test_the_position_of_any_index():
    where = Where(*(torch.tensor(i) for i in (0, 0, 5, 7)), 3)
    assert where.position.item() == 8


def test_tables_get_four_dimensions():
    assert check_table("bias", torch.ones(6), EXTENT).shape == (1, 1, 1, 6)
    assert check_table("bias", torch.ones(2, 1, 4, 1), EXTENT).shape == (2, 1, 4, 1)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (torch.ones(5), r"bias must be broadcastable to \[B,H,Q,K\] = \[2, 3, 4, 6\], got"),
        (torch.ones(3, 1, 1, 1), "bias must be broadcastable to"),
        (torch.ones(1, 1, 1, 1, 6), r"bias must be of at most 4 dimensions, got \[1, 1, 1, 1, 6\]"),
        (torch.ones(6, device="meta"), "bias.device must be that of q, cpu, got meta"),
    ],
)
def test_tables_that_do_not_fit(table, message):
    with pytest.raises(ArgumentError, match=message):
        check_table("bias", table, EXTENT)


def test_broadcasting_takes_one_or_the_size():
    check_broadcast("x", torch.ones(1, 3, 1, 6), EXTENT[:4])
    with pytest.raises(ArgumentError, match="x must be broadcastable"):
        check_broadcast("x", torch.ones(1, 2, 1, 6), EXTENT[:4])
