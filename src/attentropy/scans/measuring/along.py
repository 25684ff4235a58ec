"""Statistics along the sequence, folded into bins after every forward pass."""

import math

import torch
from torch import Tensor

from attentropy.models.watch import Watch
from attentropy.scans.schema import Curves, Profile

BINS = 24


class Along:
    """Means over passes of the profiles of every layer; bins without a row stay out of them."""

    def __init__(self) -> None:
        self.positions: list[float] = []
        self._visible = _Mean()
        self._curves: dict[tuple[int, str], _Mean] = {}
        self._layers = 0

    def add(self, watch: Watch, *, weight: int) -> None:
        """Take over the rows that `watch` kept of one pass; `weight` is its number of sequences."""
        found = [one for one in watch.profiles(BINS) if one.phase == "forward"]
        for _, slot in watch.places():
            slot.kept.clear()
        self._layers = len(found)
        for layer, profile in enumerate(found):
            for name in ("entropy", "distance"):
                values = torch.tensor(getattr(profile, name), dtype=torch.float64)
                self._curves.setdefault((layer, name), _Mean()).add(values, weight)
        self.positions = found[0].positions
        self._visible.add(torch.tensor(found[0].visible, dtype=torch.float64), weight)

    def profile(self) -> Profile:
        """All layers; a bin that no pass had is None."""
        visible = [
            value if math.isfinite(value) else 1.0 for value in self._visible.mean().tolist()
        ]
        return Profile(
            positions=self.positions,
            visible=visible,
            entropy=self._all("entropy"),
            distance=self._all("distance"),
        )

    def _all(self, name: str) -> Curves:
        tables = [self._curves[layer, name].mean().tolist() for layer in range(self._layers)]
        return [[[_number(v) for v in curve] for curve in heads] for heads in tables]


class _Mean:
    """A weighted mean of tensors, entry by entry, that leaves NaN out."""

    def __init__(self) -> None:
        self.total = torch.zeros(())
        self.weight = torch.zeros(())

    def add(self, values: Tensor, weight: int) -> None:
        known = (~values.isnan()).double() * weight
        part = values.nan_to_num(0.0) * known
        self.total = self.total + part
        self.weight = self.weight + known

    def mean(self) -> Tensor:
        return self.total / self.weight.masked_fill(self.weight == 0, torch.nan)


def _number(value: float) -> float | None:
    return float(f"{value:.5g}") if math.isfinite(value) else None
