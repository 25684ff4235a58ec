"""A rank that fails is named by the others at once, with its own words."""

import time

import pytest
import torch
import torch.distributed as dist
from torch import nn

import attentropy as at
from attentropy.distributed import journey
from attentropy.distributed.failures import failing, heard, tell, telling
from tests.processes import spawn


def test_failures_of_others_are_named():
    with pytest.raises(at.DistributedError, match=r"statistics: another rank .* \(connection clos"):  # noqa: SIM117
        with failing("statistics", None):
            raise RuntimeError("connection closed")
    own = at.DistributedError("mine")
    with pytest.raises(at.DistributedError) as caught, failing("statistics", None):
        raise own
    assert caught.value is own
    with pytest.raises(ValueError, match="other"), failing("statistics", None):
        raise ValueError("other")


def test_a_process_alone_tells_nobody():
    with pytest.raises(ValueError, match="mine"), telling(None, hang_up=True):
        raise ValueError("mine")
    tell(None, ValueError("mine"))
    assert heard(None) is None


def refuse(*arguments, **options):
    raise ValueError("no room on this rank")


def ring(method, group):
    x = torch.randn(1, 2, 32, 8, requires_grad=True)
    at.ring_attend(x, x, x, mask=at.causal, method=method, group=group)


def failing_ring(rank, method, monkeypatch):
    """Rank 1 fails in the kernel; rank 0 needs it in the same call or in the next."""
    group = dist.new_group([0, 1])
    with monkeypatch.context() as patch:
        if rank == 1:
            patch.setattr(journey, "cut", refuse)
        ring(method, group)
        ring(method, group)


def failing_monitor(rank, monkeypatch):
    """Rank 1 fails in the training step, inside the monitor."""
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    with at.Monitor(layer, every=1, loggers=[]) as monitor:
        for step in range(5):
            if rank == 1 and step == 2:
                refuse()
            layer(torch.randn(2, 8, 16)).sum().backward()
            monitor.step()


def outcome(work, *arguments):
    began = time.monotonic()
    with (
        pytest.MonkeyPatch.context() as patch,
        pytest.raises((ValueError, at.DistributedError)) as caught,
    ):
        work(*arguments, patch)
    return type(caught.value).__name__, str(caught.value), time.monotonic() - began


def told(rank):
    rings = [outcome(failing_ring, rank, method) for method in ("gather", "ring")]
    found = [*rings, outcome(failing_monitor, rank)]
    return found, heard(dist.group.WORLD)  # what was raised is not raised again


def test_the_first_cause_is_what_everyone_prints():
    (others, words), (own, _) = spawn(told, 2)
    assert words is None
    assert [(kind, text) for kind, text, _ in own] == [("ValueError", "no room on this rank")] * 3
    for kind, text, seconds in others:
        assert kind == "DistributedError"
        assert "rank 1 failed: ValueError: no room on this rank" in text
        assert seconds < 15  # the timeout of the group is longer
