"""Train a tiny classifier with and without a floor under the entropy of its attention.

One marked token among 24 decides the class of a sequence. A high learning rate drives attention
to one-hot rows, through which no gradient flows. A loss on entropies below a floor keeps every
head open; the coefficient is positive, which rewards entropy.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import attentropy as at

CLASSES, LENGTH, WIDTH = 4, 24, 32


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(CLASSES + 8, WIDTH)
        self.attention = at.nn.MultiheadAttention(WIDTH, 4)
        self.query = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.out = nn.Linear(WIDTH, CLASSES)

    def forward(self, tokens: Tensor) -> tuple[Tensor, at.Stats]:
        x = self.embed(tokens)
        out, stats = self.attention(self.query.expand(len(x), 1, -1), x)
        return self.out(out[:, 0]), stats


def batch(size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Sequences of fillers, with the token of the class at a random place."""
    label = torch.randint(CLASSES, (size,), generator=generator)
    tokens = torch.randint(CLASSES, CLASSES + 8, (size, LENGTH), generator=generator)
    place = torch.randint(LENGTH, (size, 1), generator=generator)
    return tokens.scatter(1, place, label[:, None]), label


def train(floor: float | None) -> tuple[float, Tensor]:
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    model = Classifier()
    penalty = None if floor is None else at.nn.EntropyLoss(5.0, band=(floor, None))
    optimiser = torch.optim.Adam(model.parameters(), 0.02)
    for _ in range(150):
        tokens, label = batch(32, generator)
        logits, stats = model(tokens)
        loss = F.cross_entropy(logits, label)
        if penalty is not None:
            loss = loss + penalty(stats)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    with torch.no_grad():
        tokens, label = batch(500, generator)
        logits, stats = model(tokens)
    accuracy = (logits.argmax(-1) == label).float().mean().item()
    return accuracy, stats.per_head().entropy


def main() -> None:
    for floor in (None, 1.0):
        accuracy, entropy = train(floor)
        heads = ", ".join(f"{h:.2f}" for h in entropy.tolist())
        name = "no floor " if floor is None else f"floor {floor}"
        print(f"{name}: accuracy {accuracy:.2f}, entropy of heads {heads} nats")


if __name__ == "__main__":
    main()
