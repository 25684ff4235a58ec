"""Watching a model that several processes train: the rows of all are those of one."""

import math

import msgspec
import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import attentropy as at
from attentropy.models.record.reduce import Shared, elsewhere, slots, totals
from tests.models.test_watch import Model
from tests.processes import spawn


def batches():
    return torch.randn(4, 3, 7, 32, generator=torch.Generator().manual_seed(1))


def model():
    torch.manual_seed(0)
    return Model()


def assert_same_rows(got, want):
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        for name, value in msgspec.structs.asdict(b).items():
            one = getattr(a, name)
            if name == "layer":
                assert one.endswith(value)
            elif isinstance(value, float):
                assert one == pytest.approx(value, rel=1e-5, abs=1e-5, nan_ok=True), name
            else:
                assert one == value, name


def alone():
    """Rows of one process that sees every batch."""
    with at.watch(one := model()) as w:
        for x in batches():
            one(x)
    return w.heads()


def test_layers_of_other_processes_have_owners_of_their_own():
    with at.watch(one := model()) as w:
        one(batches()[0])
    whole = slots(totals(w.recorder.owners))
    assert elsewhere(w.recorder, whole) == []
    far = {place._replace(layer=f"far.{place.layer}"): slot for place, slot in whole.items()}
    found = elsewhere(w.recorder, whole | far)
    assert {place: slot for owner in found for place, slot in owner.slots.items()} == far
    assert all(owner.name.startswith("far.") for owner in found)


def run(wrapped, rank, ranks):
    with at.watch(wrapped) as w:
        for x in batches()[rank::ranks]:
            wrapped(x).square().mean().backward()
    return w


def watched(rank):
    ranks, want = 2, alone()
    w = run(DistributedDataParallel(model()), rank, ranks)
    shared = Shared(w.recorder.owners)
    first = shared.start()
    w.clear()
    second = shared.start()
    assert_same_rows(first.heads(), want)
    assert all(math.isnan(row.entropy) for row in second.heads())

    sharded = model()
    for layer in sharded.layers:
        fully_shard(layer, mesh=init_device_mesh("cpu", (ranks,)))
    fully_shard(sharded, mesh=init_device_mesh("cpu", (ranks,)))
    w = run(sharded, rank, ranks)
    w.reduce()
    assert_same_rows(w.heads(), want)
    nothing(rank)
    monitored(rank)
    heads_of_ranks(rank)
    return "same"


def monitored(rank):
    """The first rank writes, what all recorded, one step later; the other ranks write nothing."""
    told = []
    trained = model()
    with at.Monitor(
        trained,
        every=2,
        loggers=[lambda metrics, step: told.append((step, metrics.rows))],
        alarms=[],
    ) as monitor:
        for number in range(3):
            if number != 2 or rank == 1:
                trained(batches()[rank])
            metrics = monitor.step(loss=1.0)
            assert (metrics is None) == (number != 1)
    assert [step for step, _ in told] == ([0, 2] if rank == 0 else [])
    if rank == 0:
        with at.watch(one := model()) as w:
            for x in batches()[:2]:
                one(x)
        assert_same_rows(told[0][1], w.heads())
        with at.watch(one := model()) as w:
            one(batches()[1])
        assert_same_rows(told[1][1], w.heads())


def nothing(rank):
    """One rank saw no batch."""
    mine, want = model(), model()
    w = at.watch(mine).start()
    if rank == 1:
        mine(batches()[0])
    w.stop()
    rows = Shared(w.recorder.owners).start().heads()
    with at.watch(want) as alone:
        want(batches()[0])
    assert_same_rows(rows, alone.heads())


class Heads(nn.Module):
    """Some of the heads of an attention layer."""

    def __init__(self, which):
        super().__init__()
        self.which = which

    def forward(self, x):
        q = x.unflatten(-1, (4, -1)).transpose(1, 2)[:, self.which]
        return nn.functional.scaled_dot_product_attention(q, q, q)


def heads_of_ranks(rank):
    x = batches()[0]
    with at.watch(Heads(slice(2 * rank, 2 * rank + 2))) as w:
        w.model(x)
    with at.watch(Heads(slice(0, 4))) as whole:
        whole.model(x)
    rows, want = Shared(w.recorder.owners).start().side_by_side(), whole.heads()
    assert [row.head for row in rows] == [0, 1, 2, 3]
    for a, b in zip(rows, want, strict=True):
        assert a.entropy == pytest.approx(b.entropy)
        assert a.max_logit == pytest.approx(b.max_logit)


def test_two_processes():
    assert spawn(watched, 2) == ["same", "same"]
