"""Statistics along the sequence, from the rows that a watch kept."""

from dataclasses import dataclass

import torch
from torch import Tensor

from attentropy.models.record.accumulators import Place, Slot


@dataclass(frozen=True)
class Profile:
    """One place of the model, in bins of query positions.

    `positions` are the centres of the bins, `visible` the mean number of visible keys in each;
    `entropy` and `distance` are `[head][bin]`, NaN for bins without a row.
    """

    layer: str
    call: int
    phase: str
    positions: list[float]
    visible: list[float]
    entropy: list[list[float]]
    distance: list[list[float]]


def profiles(place: Place, slot: Slot, bins: int) -> Profile:
    """The profile of one place over all calls it kept."""
    length = max(int(kept.position.max()) + 1 for kept in slot.kept)
    bins = min(bins, length)
    entropy, distance = _Binned(slot.heads, bins), _Binned(slot.heads, bins)
    visible = _Binned(slot.heads, bins)
    for kept in slot.kept:
        spot = kept.position * bins // length
        counted = kept.counted.expand(kept.entropy.shape)
        entropy.add(kept.entropy, counted, spot)
        visible.add(kept.visible.expand(kept.entropy.shape), counted, spot)
        distance.add(kept.distance, counted[..., kept.sampled], spot[kept.sampled])
    return Profile(
        layer=place.layer,
        call=place.call,
        phase=place.phase,
        positions=[(i + 0.5) * length / bins - 0.5 for i in range(bins)],
        visible=visible.means().nanmean(0).tolist(),
        entropy=entropy.means().tolist(),
        distance=distance.means().tolist(),
    )


class _Binned:
    """Means [H,bins] of values [B,H,R] whose rows fall into bins."""

    def __init__(self, heads: int, bins: int) -> None:
        self.sums = torch.zeros(heads, bins, dtype=torch.float64, device="cpu")
        self.counts = torch.zeros_like(self.sums)

    def add(self, value: Tensor, counted: Tensor, spot: Tensor) -> None:
        kept = value.double().masked_fill(~counted, 0.0).sum(0)
        self.sums.index_add_(1, spot.cpu(), kept.cpu())
        self.counts.index_add_(1, spot.cpu(), counted.double().sum(0).cpu())

    def means(self) -> Tensor:
        return self.sums / self.counts.masked_fill(self.counts == 0, torch.nan)
