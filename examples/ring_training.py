"""Train a small model whose sequence is spread over processes; the losses are those of one.

    torchrun --nproc-per-node 2 examples/ring_training.py

Each process holds half of every sequence in the zig-zag layout. ring_attend() gives exact
attention and exact entropies over the whole; DDP adds up the gradients of the parameters. Run with
plain `python`, the script trains in one process.
"""

import os
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import attentropy as at

VOCABULARY, LENGTH, WIDTH, HEADS, STEPS = 32, 250, 32, 4, 50
Attend = Callable[..., at.Attended]


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor, *, attend: Attend) -> tuple[Tensor, Tensor]:
        heads = self.qkv(self.norm(x)).unflatten(-1, (3, HEADS, -1))
        mixed, stats = attend(*heads.permute(2, 0, 3, 1, 4), mask=at.causal)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.mlp(x), stats.entropy


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, WIDTH)
        self.place = nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(
        self, tokens: Tensor, positions: Tensor, *, attend: Attend
    ) -> tuple[Tensor, list[Tensor]]:
        x, entropies = self.token(tokens) + self.place(positions), []
        for layer in self.layers:
            x, entropy = layer(x, attend=attend)
            entropies.append(entropy)
        return self.head(x), entropies


def batch(step: int) -> tuple[Tensor, Tensor]:
    """Tokens that go up by a stride of their own, and the token that follows each."""
    generator = torch.Generator().manual_seed(step)
    first, stride = (torch.randint(n, (4, 1), generator=generator) for n in (VOCABULARY, 4))
    tokens = (first + (stride + 1) * torch.arange(LENGTH + 1)) % VOCABULARY
    return tokens[:, :-1], tokens[:, 1:]


def train(ranks: int) -> tuple[list[float], list[float]]:
    """Losses of all steps, and the mean entropy of each layer at the end."""
    torch.manual_seed(0)
    model = Model()
    layout, attend = at.zigzag, at.attend
    if ranks > 1:
        model = nn.parallel.DistributedDataParallel(model)

        def attend(q: Tensor, k: Tensor, v: Tensor, **options: object) -> at.Attended:
            return at.ring_attend(q, k, v, layout=layout, method="ring", **options)

    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for step in range(STEPS):
        tokens, after, positions = *batch(step), torch.arange(LENGTH)
        if ranks > 1:
            tokens, after = layout.shard(tokens), layout.shard(after)
            positions = layout.positions(LENGTH)
        logits, entropies = model(tokens, positions, attend=attend)
        # DDP averages over ranks: each takes its sum, over the mean number of tokens of a rank
        total = F.cross_entropy(logits.flatten(0, 1), after.flatten(), reduction="sum")
        optimizer.zero_grad()
        (total * ranks / (len(tokens) * LENGTH)).backward()
        optimizer.step()
        sums = torch.stack([total.detach(), *(x.detach().sum() / HEADS for x in entropies)])
        if ranks > 1:
            dist.all_reduce(sums)
        losses.append(sums[0].item() / (len(tokens) * LENGTH))
    return losses, (sums[1:] / (len(tokens) * LENGTH)).tolist()


def main() -> None:
    torch.set_num_threads(1)
    if "RANK" not in os.environ:
        losses, entropies = train(ranks=1)
        print(
            f"one process: loss {losses[0]:.4f} -> {losses[-1]:.4f}, "
            f"mean entropies {entropies[0]:.4f} {entropies[1]:.4f}"
        )
        return
    dist.init_process_group("gloo")
    ranks = dist.get_world_size()
    together, entropies = train(ranks)
    alone, exact = train(ranks=1) if dist.get_rank() == 0 else (together, entropies)
    apart = max(abs(a - b) / b for a, b in zip(together, alone, strict=True))
    if dist.get_rank() == 0:
        print(f"{ranks} processes: loss {together[0]:.4f} -> {together[-1]:.4f}")
        print("mean entropy of each layer:", *(f"{x:.4f}" for x in entropies))
        print("the same in one process:   ", *(f"{x:.4f}" for x in exact))
        print(f"losses differ by at most {apart:.1e} of their value over {STEPS} steps")
    dist.barrier()
    dist.destroy_process_group()
    if apart > 1e-5:
        raise SystemExit(f"losses differ by {apart}")


if __name__ == "__main__":
    main()
