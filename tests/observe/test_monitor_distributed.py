"""A monitor in every process of a data-parallel training: one run, with the rows of all."""

import warnings

import torch
from torch.nn.parallel import DistributedDataParallel

import attentropy as at
from attentropy.observe import record

from ..processes import spawn
from .test_watch import CAUSAL, Model


def train(rank, folder):
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    model = DistributedDataParallel(Model().train())
    monitor = at.Monitor(model, every=2, name=f"{folder}/run.db")
    for step in range(3):
        if rank == 0 or step == 0:  # at the last sample the other rank sees no attention
            model.module(torch.randn(1 + rank, 11, 32), CAUSAL).square().mean().backward()
        monitor.step(loss=1.0)
    sinks = len(monitor.sinks)
    monitor.close()
    return [[(row.layer, row.rows) for row in s.rows] for s in monitor.history], sinks


def test_rows_add_up_and_the_first_process_writes(tmp_path):
    (first, writes), (second, reads) = spawn(train, 2, str(tmp_path))
    assert (writes, reads) == (1, 0)
    assert first == second
    assert first[0] == [("layers.0", 30)] * 4 + [("layers.1", 30)] * 4
    assert {count for _, count in first[1]} == {10}
    run = record.read(tmp_path / "run.db")
    assert run.steps == [0, 2]
    assert run.layers == ["layers.0", "layers.1"]
