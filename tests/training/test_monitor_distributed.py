"""A monitor in every process of a data-parallel training: one run, with the rows of all."""

import math
import warnings

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

import attentropy as at
from attentropy.models.record.measures import ROWS
from attentropy.models.record.sampled import SAMPLED
from attentropy.training import runstore
from attentropy.training.alarms import NotFinite, clip, stop
from tests.models.test_watch import CAUSAL, Model
from tests.processes import spawn


def train(rank, folder):
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    model = DistributedDataParallel(Model().train())
    monitor = at.Monitor(model, every=2, name=f"{folder}/run.db")
    for step in range(3):
        if rank == 0 or step == 0:  # at the last sample the other rank sees no attention
            model.module(torch.randn(1 + rank, 11, 32), CAUSAL).square().mean().backward()
        monitor.step(loss=1.0)
    loggers = len(monitor.loggers)
    monitor.close()
    return [[(row.layer, row.rows) for row in s.rows] for s in monitor.history], loggers


def test_rows_add_up_and_the_first_process_writes(tmp_path):
    (first, writes), (second, reads) = spawn(train, 2, str(tmp_path))
    assert (writes, reads) == (1, 0)
    assert first == second
    assert first[0] == [("layers.0", 30)] * 4 + [("layers.1", 30)] * 4
    assert {count for _, count in first[1]} == {10}
    run = runstore.read(tmp_path / "run.db")
    assert run.steps == [0, 2]
    assert run.layers == ["layers.0", "layers.1"]


class OnTheFirst:
    """An action of a user who thinks of the first process only."""

    def __init__(self, rank):
        self.rank = rank

    def __call__(self, alert, monitor):
        if self.rank == 0:
            monitor.should_stop = True


def until_stopped(rank, kind):
    torch.manual_seed(0)
    model = DistributedDataParallel(Model().train())
    action = {"stop": stop, "first": OnTheFirst(rank), "clip": clip(30.0)}[kind]
    monitor = at.Monitor(model, every=2, loggers=[], alarms=[NotFinite(action=action)])
    for step in range(20):
        model(torch.randn(1, 11, 32), CAUSAL).square().mean().backward()
        # the loss of the second process alone breaks, at a step that is sampled
        monitor.step(loss=math.nan if rank == 1 and step >= 4 else 1.0)
        if monitor.should_stop or monitor.changes:
            break
    monitor.close()
    torch.distributed.barrier()
    return step, monitor.should_stop, len(monitor.changes), [alert.step for alert in monitor.alerts]


@pytest.mark.parametrize(
    "kind", ["clip", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("stop", "first"))]
)
def test_every_process_stops_or_changes_at_the_same_step(kind):
    first, second = spawn(until_stopped, 2, kind)
    assert first == second
    assert first == (5, kind != "clip", int(kind == "clip"), [4])


def warned(rank):
    model = DistributedDataParallel(Model().train())
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        with at.Monitor(model, every=1, loggers=[], alarms=[NotFinite()]) as monitor:
            model(torch.randn(1, 11, 32), CAUSAL).square().mean().backward()
            monitor.step(loss=math.inf)
    return [str(one.message) for one in heard if "attentropy" in str(one.message)]


def test_the_first_process_alone_warns():
    first, second = spawn(warned, 2)
    assert first == ["attentropy, step 0: the loss is not finite"]
    assert second == []


def counted(rank):
    """Collectives and their bytes at each step, and what was still under way after it."""
    torch.manual_seed(0)
    model = DistributedDataParallel(Model().train())
    names = ("all_gather", "all_gather_object", "all_reduce", "broadcast", "reduce_scatter")
    plain = {name: getattr(torch.distributed, name) for name in names}
    calls = []

    def counting(name):
        def call(*given, **options):
            size = given[1].nbytes if name == "all_gather" else 0
            calls.append((name, size, options.get("async_op", False)))
            return plain[name](*given, **options)

        return call

    monitor = at.Monitor(model, every=2, loggers=[], alarms=[NotFinite()])
    for name in names:
        setattr(torch.distributed, name, counting(name))
    found = []
    for _ in range(7):
        model(torch.randn(1, 11, 32), CAUSAL).square().mean().backward()
        calls.clear()
        told = monitor.step(loss=1.0)
        found.append((list(calls), told is not None, monitor._pending is not None))
    for name in names:
        setattr(torch.distributed, name, plain[name])
    monitor.close()
    torch.distributed.barrier()
    return found


def test_a_sample_is_one_message_that_nothing_waits_for():
    first, second = spawn(counted, 2)
    assert first == second
    heads, layers = 4, 2
    each = heads**2 + (len(ROWS) + len(SAMPLED) + 1) * heads + 4 + 5  # and a flag for each name
    size = 8 * (1 + layers * each + 2 + 3)  # is a name new?; whether to stop, and the loss
    sent = [("all_gather", size, True)]
    # names are agreed on once, when the first sample arrives
    assert [name for name, _, _ in first[1][0]] == ["all_gather_object", "all_gather"]
    assert first[2:] == [(sent, False, True), ([], True, False)] * 2 + [(sent, False, True)]
