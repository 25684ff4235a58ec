"""The processes that share a sequence: who they are, and small exchanges between them.

A group is a ProcessGroup or a DeviceMesh of one dimension. None is the default group, or this
process alone where torch.distributed was not started, so that a script runs unchanged in one
process.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from attentropy.core.errors import ArgumentError, ArgumentTypeError
from attentropy.distributed.failures import failing, wait

Group = Any
"""dist.ProcessGroup, DeviceMesh or None."""


@dataclass(frozen=True)
class Peers:
    """This process within its group.

    Attributes:
        group: the ProcessGroup; None for a process alone.
        rank: of this process in the group.
        size: number of processes.
    """

    group: Any
    rank: int
    size: int

    def global_rank(self, rank: int) -> int:
        """The rank in the whole job of a rank of the group.

        Args:
            rank: within the group.
        """
        return rank if self.group is None else dist.get_global_rank(self.group, rank)

    def gather(self, x: Tensor) -> list[Tensor]:
        """The x of every rank.

        Args:
            x: of the same shape and dtype on every rank.
        """
        if self.size == 1:
            return [x]
        parts = [torch.empty_like(x) for _ in range(self.size)]
        with failing("all_gather", self.group):
            work = dist.all_gather(parts, x.contiguous(), group=self.group, async_op=True)
        wait(work, "all_gather", self.group)
        return parts

    def scatter_sum(self, parts: list[Tensor]) -> Tensor:
        """The sum over ranks of the part that each has for this one.

        Args:
            parts: one tensor for each rank.
        """
        if self.size == 1:
            return parts[0]
        total = torch.empty_like(parts[0])
        with failing("reduce_scatter", self.group):
            work = dist.reduce_scatter(total, parts, group=self.group, async_op=True)
        wait(work, "reduce_scatter", self.group)
        return total


def peers(group: Group = None) -> Peers:
    """This process in a group; raises if it is not a member, or if this is not a group.

    Args:
        group: a ProcessGroup, a DeviceMesh of one dimension, or None for the default group.
    """
    if group is None and not (dist.is_available() and dist.is_initialized()):
        return Peers(None, 0, 1)
    group = _process_group(group)
    rank = dist.get_rank(group)
    if rank < 0:
        raise ArgumentError("group", "a group that this process belongs to", "one without it")
    return Peers(group, rank, dist.get_world_size(group))


def _process_group(group: Group) -> Any:
    if group is None:
        return dist.group.WORLD
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        raise ArgumentError("group", "a group that this process belongs to", "one without it")
    if isinstance(group, dist.ProcessGroup):
        return group
    if hasattr(group, "get_group") and hasattr(group, "mesh_dim_names"):
        if group.ndim != 1:
            rule = 'a mesh of one dimension, such as mesh["context"]'
            raise ArgumentError("group", rule, f"one of {group.ndim}")
        return group.get_group()
    raise ArgumentTypeError("group", "a ProcessGroup, a DeviceMesh or None", repr(group))
