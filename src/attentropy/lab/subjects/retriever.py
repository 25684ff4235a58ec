"""A head that names the class of the item with the largest priority, and sets of items."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attentropy.attention.attend import attend
from attentropy.core.scales import ScaleRule

CLASSES = 10
Scale = ScaleRule | float | Tensor


class Retriever(nn.Module):
    """One attention head with a learned query; keys, values and answer are linear maps.

    The score of an item is a * priority + b_class: whatever b_class is left is a leak.
    """

    def __init__(self, width: int, scale: Scale) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.randn(width) * width**-0.5)
        self.key, self.value = nn.Linear(1 + CLASSES, width), nn.Linear(1 + CLASSES, width)
        self.answer = nn.Linear(width, CLASSES)
        self.scale = scale

    def encoded(self, priority: Tensor, kind: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [B,1,n,width].

        Args:
            priority: [B,n].
            kind: class of each item, [B,n].
        """
        x = torch.cat([priority[..., None], F.one_hot(kind, CLASSES).float()], -1)
        return self.key(x)[:, None], self.value(x)[:, None]

    def asked(self, k: Tensor) -> Tensor:
        """The query of every set, [B,1,1,width].

        Args:
            k: keys [B,1,n,width].
        """
        return (self.query * len(self.query) ** 0.5).expand(len(k), 1, 1, -1)

    def read(self, k: Tensor, v: Tensor, scale: Scale) -> tuple[Tensor, Tensor]:
        """Logits of the classes [B,10], and the entropy of the row [B].

        Args:
            k: keys [B,1,n,width].
            v: values [B,1,n,width].
            scale: a rule, a number or a tensor.
        """
        out, stats = attend(self.asked(k), k, v, scale=scale)
        assert stats.entropy is not None
        return self.answer(out[:, 0, 0]), stats.entropy[:, 0, 0]

    def forward(self, priority: Tensor, kind: Tensor) -> Tensor:
        """Logits of the classes, [B,10].

        Args:
            priority: [B,n].
            kind: class of each item, [B,n].
        """
        return self.read(*self.encoded(priority, kind), self.scale)[0]

    def leak(self) -> float:
        """Standard deviation over classes of b_class, in units of priority."""
        slopes = self.query @ self.key.weight
        return (slopes[1:].std(correction=0) / slopes[0].abs()).item()


def sets(count: int, n: int, rng: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Priorities uniform on [0, 1], classes, and the class of the largest priority.

    Args:
        count: number of sets.
        n: items of a set.
        rng: source of random numbers.
    """
    priority = torch.rand(count, n, generator=rng)
    kind = torch.randint(CLASSES, (count, n), generator=rng)
    return priority, kind, kind.gather(1, priority.argmax(1, keepdim=True))[:, 0]


def adaptive(entropy: Tensor) -> Tensor:
    """The published factor on the logits: a polynomial in H where H > 0.5, at least 1.

    Args:
        entropy: of the rows, in nats.
    """
    inverse = torch.zeros_like(entropy)
    for coefficient in (-0.037, 0.481, -2.3, 4.917, -1.791):
        inverse = inverse * entropy + coefficient
    return torch.where(entropy > 0.5, inverse.clamp(min=1.0), 1.0)
