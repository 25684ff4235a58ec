"""Statistics along the sequence, from the rows that a watch kept.

torch is imported where numbers are made, so that a scan can be read without it.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from torch import Tensor

    from attentropy.models.record.accumulators import Place, Slot

Bins = list[float | None]


class Profile(msgspec.Struct, forbid_unknown_fields=True):
    """One place of the model, in bins of query positions; None for a bin without a row.

    Attributes:
        layer: the module's name in the model.
        call: 0 for the module's first call in a forward pass, 1 for the second, and so on.
        phase: "forward", or "step" for queries that continue a cache.
        positions: the centres of the bins.
        visible: the mean number of visible keys in each bin.
        entropy: `[head][bin]`, the mean entropy.
        distance: `[head][bin]`, the mean distance of the keys attended to.
    """

    layer: str
    call: int
    phase: str
    positions: list[float]
    visible: Bins
    entropy: list[Bins]
    distance: list[Bins]


def profiles(place: "Place", slot: "Slot", bins: int) -> Profile:
    """The profile of one place over all recorded calls.

    Args:
        place: where the rows come from.
        slot: what was kept of them.
        bins: the number of bins; fewer for a shorter text.
    """
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
        visible=_known(visible.means().nanmean(0).tolist()),
        entropy=_known(entropy.means().tolist()),
        distance=_known(distance.means().tolist()),
    )


class _Binned:
    """Means [H,bins] of values [B,H,R] whose rows fall into bins."""

    def __init__(self, heads: int, bins: int) -> None:
        import torch

        self.sums = torch.zeros(heads, bins, dtype=torch.float64, device="cpu")
        self.counts = torch.zeros_like(self.sums)

    def add(self, value: "Tensor", counted: "Tensor", spot: "Tensor") -> None:
        kept = value.double().masked_fill(~counted, 0.0).sum(0)
        self.sums.index_add_(1, spot.cpu(), kept.cpu())
        self.counts.index_add_(1, spot.cpu(), counted.double().sum(0).cpu())

    def means(self) -> "Tensor":
        return self.sums / self.counts.masked_fill(self.counts == 0, math.nan)


def _known(values: Any) -> Any:
    """The same lists with None in place of what is not finite."""
    if isinstance(values, list):
        return [_known(value) for value in values]
    return values if math.isfinite(values) else None


def merged(parts: Sequence[Profile], weights: Sequence[float]) -> Profile:
    """The weighted mean of profiles of one place, bin by bin, without the bins that have no row.

    Args:
        parts: profiles with the same bins.
        weights: the weight of each, such as its number of sequences.
    """

    def mean(curves: Sequence[Bins]) -> Bins:
        return [_mean(values, weights) for values in zip(*curves, strict=True)]

    def means(tables: Sequence[list[Bins]]) -> list[Bins]:
        return [mean(curves) for curves in zip(*tables, strict=True)]

    return msgspec.structs.replace(
        parts[0],
        visible=mean([part.visible for part in parts]),
        entropy=means([part.entropy for part in parts]),
        distance=means([part.distance for part in parts]),
    )


def _mean(values: Sequence[float | None], weights: Sequence[float]) -> float | None:
    known = [(v, w) for v, w in zip(values, weights, strict=True) if v is not None]
    total = sum(w for _, w in known)
    return sum(v * w for v, w in known) / total if total else None
