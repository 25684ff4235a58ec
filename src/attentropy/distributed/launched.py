"""The team of processes that torchrun, or another launcher, started."""

import datetime
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist

from attentropy.distributed.groups import peers
from attentropy.distributed.team import ALONE, Team

PATIENCE = datetime.timedelta(days=1)
"""How long a rank waits for another that works; one that dies is noticed at once."""


@contextmanager
def launched() -> Iterator[Team]:
    """The team of this process inside the block; this process alone where no launcher ran it.

    A launcher says who is there in MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE. Messages go
    over gloo, which needs no GPU. An existing process group is used as it is.
    """
    if dist.is_available() and dist.is_initialized():
        yield Team(peers())
        return
    if world_size() < 2:
        yield ALONE
        return
    store, rank, size = next(dist.rendezvous("env://"))
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=PATIENCE)
    team = Team(peers(), store)
    store.set(_home(rank), f"{socket.gethostname()} {os.getpid()}")
    try:
        yield team
    finally:
        dist.destroy_process_group()


def dead(team: Team) -> list[int]:
    """Ranks of this machine whose processes have ended.

    Args:
        team: what `launched` gave.
    """
    if team.store is None:
        return []
    homes = [team.store.get(_home(rank)).decode().split() for rank in range(team.size)]
    here = socket.gethostname()
    return [rank for rank, (host, pid) in enumerate(homes) if host == here and _ended(int(pid))]


def _home(rank: int) -> str:
    return f"attentropy/home/{rank}"


def _ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def world_size() -> int:
    """The number of processes that the launcher started; 1 without one."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def own_device(name: str) -> str:
    """The device of this process: "cuda" is a GPU of its own for each process of a machine.

    Args:
        name: of the device.
    """
    local = os.environ.get("LOCAL_RANK")
    return f"{name}:{local}" if name == "cuda" and local is not None and world_size() > 1 else name
