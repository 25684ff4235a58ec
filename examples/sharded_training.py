"""Fully sharded training that is watched and clipped.

    torchrun --nproc-per-node 2 examples/sharded_training.py

Every process holds a part of each parameter (FSDP2) and reads its own rows. Monitor adds up what
all see, one message per sample. QKClip holds the largest logits below a limit, one message per
step, over passes that are accumulated and recomputed. Plain `python` trains in one process.
"""

import os

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import attentropy as at
from attentropy.training.clipping import QKClip

torch.set_num_threads(1)
STEPS, ROWS, LENGTH, WIDTH, LIMIT = 6, 8, 32, 32, 1.0


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            at.nn.MultiheadAttention(WIDTH, 4, mask=at.causal) for _ in range(2)
        )
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + checkpoint(lambda y, layer=layer: layer(y).out, x, use_reentrant=False)
        return self.head(x)


def main() -> None:
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    torch.manual_seed(0)
    model = Model()
    with torch.no_grad():
        model.layers[0].in_proj_weight.mul_(3)  # sharp heads, to have something to clip
    if ranks > 1:
        from torch.distributed.fsdp import fully_shard

        dist.init_process_group("gloo")
        for layer in model.layers:
            fully_shard(layer)
        fully_shard(model)
    rank = dist.get_rank() if ranks > 1 else 0
    optimizer, clip = torch.optim.AdamW(model.parameters(), 1e-3), QKClip(model, LIMIT)
    told = []
    for step in range(STEPS):
        batch = torch.randn(ROWS, LENGTH, WIDTH, generator=torch.Generator().manual_seed(step))
        for part in batch.chunk(ranks)[rank].split(2):  # accumulated
            model(part).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        told.append(float(min(factor.min() for factor in clip.step().values())))
    clip.close()
    with at.Monitor(model, every=1, loggers=[], alarms=[]) as monitor:
        model(batch.chunk(ranks)[rank]).square().mean().backward()
        monitor.step()
    if rank == 0:
        print(f"least factors: {told[0]:.3f} at the first step, {told[-1]:.3f} at the last")
        for row in monitor.history[0].rows:
            print(f"{row.label}: entropy {row.entropy:.3f}, largest logit {row.max_logit:.2f}")
    if ranks > 1:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
