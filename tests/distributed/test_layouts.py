"""Layouts: every position once, runs ascending, balanced; groups that are none."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import attentropy as at
from attentropy.distributed.layouts import spread

BOTH = (at.contiguous, at.zigzag)


@given(st.sampled_from(BOTH), st.integers(0, 70), st.integers(1, 9))
def test_every_position_has_one_rank(layout, length, ranks):
    every = [layout.runs(length, ranks=ranks, rank=r) for r in range(ranks)]
    held = [[i for run in runs for i in run] for runs in every]
    assert sorted(i for part in held for i in part) == list(range(length))
    assert all(part == sorted(part) for part in held)
    assert layout.sizes(length, ranks=ranks) == [len(part) for part in held]
    assert max(map(len, held)) - min(map(len, held)) <= layout.turns


@given(st.sampled_from(BOTH), st.integers(0, 40), st.integers(1, 6))
def test_join_is_the_inverse_of_take(layout, length, ranks):
    x = torch.arange(3 * length).view(3, length)
    parts = [layout.take(x, dim=1, ranks=ranks, rank=r) for r in range(ranks)]
    assert torch.equal(layout.join(parts, dim=1), x)


@given(st.integers(1, 8))
def test_zigzag_gives_every_rank_the_same_causal_work(ranks):
    work = [
        sum(i + 1 for run in at.zigzag.runs(16 * ranks, ranks=ranks, rank=r) for i in run)
        for r in range(ranks)
    ]
    assert len(set(work)) == 1


def test_runs():
    assert at.zigzag.runs(16, ranks=4, rank=1) == (range(2, 4), range(12, 14))
    assert at.contiguous.runs(10, ranks=4, rank=3) == (range(7, 10),)
    assert at.zigzag.runs(2, ranks=4, rank=0) == (range(1, 2),)


def test_alone_a_process_holds_everything():
    x = torch.arange(10).view(1, 10)
    assert torch.equal(at.zigzag.shard(x), x)
    assert torch.equal(at.zigzag.unshard(x), x)
    assert torch.equal(at.zigzag.positions(10), torch.arange(10))
    (placed,) = at.contiguous.over(None).shares(7)
    assert placed == (7, (range(7),))
    assert spread(at.zigzag.over(None)).layout is at.zigzag


def test_refusals():
    with pytest.raises(TypeError, match="shard: x must be a tensor, got list"):
        at.zigzag.shard([1, 2])
    with pytest.raises(ValueError, match=r"shard: dim must be a dimension of x, .*, got 3"):
        at.zigzag.shard(torch.zeros(2, 2), dim=3)
    with pytest.raises(ValueError, match="the length of q on rank 0 must be 3, its share of 11"):
        at.contiguous.check_sizes("q", [5, 5, 1])
