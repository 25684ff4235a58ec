"""Models whose disease is known: their loss rises with the distance, or with the number of keys."""

import torch
from torch import Tensor, nn

TRAINED = 64


class Sick(nn.Module):
    """Gives every next token the loss 1, and `harm` more where its disease strikes."""

    def __init__(self, *, distance: float = 0.0, dilution: float = 0.0) -> None:
        super().__init__()
        self.distance, self.dilution = distance, dilution
        self.calls: list[Tensor] = []

    def forward(
        self, ids: Tensor, position_ids: Tensor | None = None, attention_mask: Tensor | None = None
    ) -> Tensor:
        count = torch.arange(ids.shape[1])
        places = count.expand(ids.shape) if position_ids is None else position_ids
        self.calls.append(places)
        far = places - places[:, :1] >= TRAINED
        many = (count >= TRAINED).expand(ids.shape)
        loss = 1 + self.distance * far + self.dilution * many + 0.01 * torch.sin(ids * 1.0)
        return _with_loss(ids, loss)


class Orderly(nn.Module):
    """Takes no positions: distances follow from the order of its tokens."""

    def forward(self, ids: Tensor) -> Tensor:
        return _with_loss(ids, torch.ones(ids.shape))


def _with_loss(ids: Tensor, loss: Tensor) -> Tensor:
    """Logits [B, n, 3] that give the next token (0 or 1) this loss; 2 takes what is left."""
    p = (-loss[:, :-1]).exp()
    logits = torch.zeros(*ids.shape, 3, dtype=torch.float64) - 50
    rest = (1 - p).log()
    logits[:, :-1].scatter_(-1, ids[:, 1:, None], p.log().double()[..., None])
    logits[:, :-1, 2] = rest.double()
    return logits


def text(rows: int, length: int) -> Tensor:
    return torch.randint(2, (rows, length), generator=torch.Generator().manual_seed(0))
