"""Stages of a pipeline, watched as one model.

    torchrun --nproc-per-node 2 examples/pipeline_stages.py

Each process holds some layers (torch.distributed.pipelining) and monitors its stage; the rows of
all stages arrive at every process. Plain `python` runs all layers in one.
"""

import os

import torch
import torch.distributed as dist
from torch import Tensor, nn

import attentropy as at

torch.set_num_threads(1)
LAYERS, ROWS, LENGTH, WIDTH = 4, 4, 24, 32


class Stage(nn.Module):
    """Some layers, under the numbers that they have in the whole."""

    def __init__(self, rank: int, ranks: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        every = [at.nn.MultiheadAttention(WIDTH, 4, mask=at.causal) for _ in range(LAYERS)]
        mine = range(rank * LAYERS // ranks, (rank + 1) * LAYERS // ranks)
        self.layers = nn.ModuleDict({str(i): every[i] for i in mine})

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers.values():
            x = x + layer(x).out
        return x


def loss(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).square().mean()


def main() -> None:
    ranks, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    stage = Stage(rank, ranks)
    x = torch.randn(ROWS, LENGTH, WIDTH, generator=torch.Generator().manual_seed(1))
    if ranks > 1:
        from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

        dist.init_process_group("gloo")
        part = PipelineStage(stage, rank, ranks, torch.device("cpu"))
        schedule = ScheduleGPipe(part, n_microbatches=2, loss_fn=loss)
        last = {"target": x} if rank == ranks - 1 else {}
        # torch's first step finds shapes with tensors that hold anything: watch from the second on
        schedule.step(*([x] if rank == 0 else []), **last)
    with at.Monitor(stage, every=1, loggers=[], alarms=[]) as monitor:
        if ranks == 1:
            loss(stage(x), x).backward()
        else:
            schedule.step(*([x] if rank == 0 else []), **last)
        monitor.step()
    if rank == 0:
        for row in monitor.history[0].rows:
            print(f"{row.label}: entropy {row.entropy:.4f}")
    if ranks > 1:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
