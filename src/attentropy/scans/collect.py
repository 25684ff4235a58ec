"""Adding up the rows of one length: means per head, and along the sequence in bins.

Memory is that of the sums, heads x bins, however many rows are added.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from attentropy.scans.schema import Curves, Number, Profile, Table

BINS = 24
ROBUST = torch.e - 1  # Var(e^x) / E(e^x)^2 of a standard Gaussian x
AVERAGED = (
    "entropy",
    "normalized_entropy",
    "perplexity",
    "sparsity",
    "top_probability",
    "sink_mass",
    "output_norm",
    "gradient_flow",
    "noise_robustness",
    "distance",
    "previous_share",
)


@dataclass
class Layer:
    """The sums of one layer; rows are [B, H, Q], and only rows that had a choice count."""

    length: int
    heads: int
    sums: dict[str, Tensor] = field(default_factory=dict)
    counts: dict[str, Tensor] = field(default_factory=dict)
    largest: Tensor | None = None
    curves: dict[str, Tensor] = field(default_factory=dict)
    hits: Tensor | None = None

    def add(self, rows: dict[str, Tensor], *, visible: Tensor) -> None:
        """Add the rows of one call; `visible` is [B, H, Q]."""
        chosen = visible >= 2
        for name, values in rows.items():
            if name in AVERAGED:
                self._add_mean(name, values.double(), chosen & ~values.isnan())
        if "max_logit" in rows:
            top = rows["max_logit"].double().masked_fill(~chosen, -torch.inf).amax((0, 2))
            self.largest = top if self.largest is None else torch.maximum(self.largest, top)
        if "received_concentration" in rows:
            received = rows["received_concentration"].double()
            self._add_mean("received_concentration", received, torch.ones_like(received) > 0)
        self._add_curves(rows, visible.double())

    def _add_mean(self, name: str, values: Tensor, kept: Tensor) -> None:
        dims = [dim for dim in range(values.ndim) if dim != 1]
        total = values.masked_fill(~kept, 0.0).sum(dims)
        count = kept.expand_as(values).sum(dims)
        self.sums[name] = self.sums.get(name, 0) + total
        self.counts[name] = self.counts.get(name, 0) + count

    def _add_curves(self, rows: dict[str, Tensor], visible: Tensor) -> None:
        place = torch.arange(self.length, device=visible.device) * bins(self.length) // self.length
        curves = {"visible": visible, **{k: rows[k] for k in ("entropy", "distance") if k in rows}}
        for name, values in curves.items():
            along = values.double().sum(0)
            empty = along.new_zeros(self.heads, bins(self.length))
            self.curves[name] = self.curves.get(name, 0) + empty.index_add(1, place, along)
        hits = torch.bincount(place, minlength=bins(self.length)) * visible.shape[0]
        self.hits = hits if self.hits is None else self.hits + hits

    def table(self) -> dict[str, list[Number]]:
        """Every statistic of every head."""
        means = {name: total / self.counts[name] for name, total in self.sums.items()}
        if self.largest is not None:
            means["max_logit"] = self.largest
        return {name: numbers(values) for name, values in means.items()}

    def curve(self, name: str) -> list[list[Number]]:
        """The mean of `name` in every bin, for every head."""
        if name not in self.curves or self.hits is None:
            return [[None] * bins(self.length)] * self.heads
        return [numbers(row) for row in self.curves[name] / self.hits]


def bins(length: int) -> int:
    """How many bins a sequence has: no more than it has tokens."""
    return min(BINS, length)


def noise_robustness(collision: Tensor) -> Tensor:
    """1 / sqrt((e - 1) sum p^2); NaN for a row that sees nothing."""
    return 1 / (ROBUST * collision.masked_fill(collision == 0, torch.nan)).sqrt()


def numbers(values: Tensor) -> list[Number]:
    """Finite numbers to seven significant digits, None for the others."""
    listed: list[float] = values.tolist()
    return [float(f"{value:.7g}") if value - value == 0 else None for value in listed]


def tables(layers: list[Layer]) -> dict[str, Table]:
    """[layer][head] for every statistic that all layers have; None where one layer lacks it."""
    found = [layer.table() for layer in layers]
    names = dict.fromkeys(name for table in found for name in table)
    return {
        name: [
            table.get(name, [None] * layer.heads)
            for table, layer in zip(found, layers, strict=True)
        ]
        for name in names
    }


def profile(layers: list[Layer]) -> Profile:
    """The curves of all layers along the sequence."""
    length = layers[0].length
    count = bins(length)
    edges = [-(-i * length // count) for i in range(count + 1)]
    centres = [(edges[i] + edges[i + 1] - 1) / 2 for i in range(count)]
    curves: dict[str, Curves] = {
        name: [layer.curve(name) for layer in layers] for name in ("entropy", "distance")
    }
    visible = [value or 0.0 for value in layers[0].curve("visible")[0]]
    return Profile(positions=centres, visible=visible, **curves)
