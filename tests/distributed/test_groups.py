"""Groups of processes; one process alone is a group too. Several are in test_layouts and ring."""

import pytest
import torch
import torch.distributed as dist

from attentropy.distributed.groups import Peers, peers
from tests.processes import spawn


def test_one_process_alone():
    me = peers()
    assert (me.group, me.rank, me.size) == (None, 0, 1)
    x = torch.arange(3)
    assert me.gather(x) == [x]
    assert me.scatter_sum([x]) is x
    assert me.global_rank(0) == 0


def test_what_is_no_group():
    with pytest.raises(
        TypeError, match="group must be a ProcessGroup, a DeviceMesh or None, got 'w"
    ):
        peers("world")
    with pytest.raises(ValueError, match="group must be a group that this process belongs to"):
        peers(dist.GroupMember.NON_GROUP_MEMBER)


def exchanged(rank):
    me = peers()
    assert (me.rank, me.size) == (rank, 2)
    x = torch.full((2,), float(rank))
    assert [y.tolist() for y in me.gather(x)] == [[0.0, 0.0], [1.0, 1.0]]
    parts = [torch.tensor([10.0 * rank + i]) for i in range(2)]
    assert me.scatter_sum(parts).tolist() == [10.0 + 2 * rank]
    part = dist.new_group([1, 0])
    assert peers(part).size == 2
    assert peers(part).global_rank(rank) == rank
    return "same"


def test_two_processes():
    assert spawn(exchanged, 2) == ["same", "same"]


def test_peers_are_values():
    assert Peers(None, 0, 1) == Peers(None, 0, 1)
