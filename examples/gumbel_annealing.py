"""Gumbel attention with annealing: learn to pick one key, by softmax with noise that cools down.

Each query must copy the value of the one key that matches it. Training relaxes the choice at a
temperature that falls from 2 to 0.2; at test the hard sample, an exact draw of softmax, is used.
"""

import torch
from torch import Tensor

import attentropy as at

KEYS, WIDTH, START, END = 12, 16, 2.0, 0.2


def batch(generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Keys, their values, and queries that are noisy copies of a chosen key."""
    keys = torch.randn(64, 1, KEYS, WIDTH, generator=generator)
    chosen = torch.randint(KEYS, (64, 1, 1, 1), generator=generator)
    query = keys.gather(2, chosen.expand(-1, -1, 1, WIDTH))
    return keys, query + 0.1 * torch.randn(query.shape, generator=generator), chosen


def main() -> None:
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    project = torch.nn.Linear(WIDTH, WIDTH, bias=False)
    torch.nn.init.normal_(project.weight, std=0.05)
    optimiser = torch.optim.Adam(project.parameters(), 0.01)
    steps = 200
    values = torch.eye(KEYS).expand(64, 1, KEYS, KEYS)
    for step in range(steps):
        tau = START * (END / START) ** (step / (steps - 1))
        keys, query, chosen = batch(generator)
        weights = at.Gumbel(tau, generator=generator)
        out, stats = at.attend(project(query), keys, values, weights=weights)
        loss = -out.gather(-1, chosen).clamp(min=1e-6).log().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if step % 50 == 0 or step == steps - 1:
            entropy = stats.entropy.mean().item()
            print(f"tau {tau:.2f}: loss {loss.item():.3f}, entropy {entropy:.3f} nats")
    with torch.no_grad():
        keys, query, chosen = batch(generator)
        hard = at.Gumbel(END, hard=True, generator=generator)
        out, stats = at.attend(project(query), keys, values, weights=hard)
    right = (out.argmax(-1, keepdim=True) == chosen).float().mean().item()
    print(f"hard samples: {right:.2f} right, entropy {stats.entropy.mean().item():.1f}")


if __name__ == "__main__":
    main()
