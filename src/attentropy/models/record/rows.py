"""What a watch says of each head: one row of numbers per head and place."""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

import torch

from attentropy.core.errors import AttentropyError
from attentropy.models.record.accumulators import Place, Slot
from attentropy.models.record.measures import ROWS
from attentropy.models.record.sampled import SAMPLED

if TYPE_CHECKING:
    from rich.table import Table

FORMAT = "attentropy.rows"
VERSION = 1


@dataclass(frozen=True, kw_only=True)
class HeadRow:
    """One head of one attention module: means over the rows (queries) that had a choice.

    Natural logarithms; NaN where a statistic does not apply. `layer` is the module's name, `call`
    its how-manieth call in a forward pass, `phase` "forward", or "step" for queries that continue
    a cache, `kind` "self" or "cross"; `index` counts places in the order of the model.

    Attributes:
        rows: how many rows were averaged.
        length: the largest number of keys.
        entropy: H = -sum p log p.
        perplexity: e^H of each row.
        normalized_entropy: H / log visible.
        deficit: log visible - H.
        visible: keys that a row sees.
        lse: log sum e^s.
        mean_logit: lse - H.
        max_logit: the largest logit of all rows.
        top_probability: max p.
        collision: sum p^2.
        gradient_flow: 1 - sum p^2.
        sparsity: 1 / sqrt(visible sum p^2).
        noise_robustness: 1 / sqrt((e - 1) sum p^2).
        output_norm: |sum p v|.
        sink_mass: p of the first key, and of a learned sink; of evenly spaced rows in long calls
            (more than 2^17 elements of queries), unless rows are kept.
        previous_share: p of the key just before the query; of all rows where rows are kept, else
            of sampled ones.
        distance: sum p |i - j|, on sampled rows as all that follow.
        received_concentration: sum r^2, r the share of attention that each key receives.
        spread: standard deviation of a row's logits.
        logit_range: their maximum less their minimum.
        positional: cosine between a row and the head's mean row, by distance.
        twin: the head of the layer with the most similar weights, and `likeness` their cosine.
    """

    layer: str
    index: int
    call: int
    phase: str
    kind: str
    head: int
    heads: int
    head_dim: int
    causal: bool
    length: int
    rows: int
    entropy: float
    perplexity: float
    normalized_entropy: float
    deficit: float
    visible: float
    lse: float
    mean_logit: float
    max_logit: float
    top_probability: float
    collision: float
    gradient_flow: float
    sparsity: float
    noise_robustness: float
    output_norm: float
    sink_mass: float
    previous_share: float
    distance: float
    received_concentration: float
    spread: float
    logit_range: float
    positional: float
    twin: int
    likeness: float

    @property
    def label(self) -> str:
        """For people: layer, call where there are several, and head."""
        call = f"#{self.call}" if self.call else ""
        step = " (step)" if self.phase == "step" else ""
        return f"{self.layer}{call}.{self.head}{step}"

    def keys(self) -> list[str]:
        """Names of all that a row holds: `dict(row)` and `row["entropy"]` work too."""
        return [field.name for field in fields(self)]

    def __getitem__(self, name: str) -> Any:
        if name not in self.keys():
            raise KeyError(name)
        return getattr(self, name)


STATISTICS = tuple(f.name for f in fields(HeadRow))[10:]


def rows_of(place: Place, slot: Slot, index: int) -> list[HeadRow]:
    """The rows of one place."""
    means = _means(slot)
    twins, likeness = _twins(slot)
    top = slot.top.masked_fill(slot.rows[0] == 0, torch.nan).tolist()
    shared: dict[str, Any] = {
        "layer": place.layer, "index": index, "call": place.call, "phase": place.phase,
        "kind": place.kind, "heads": slot.heads, "head_dim": slot.head_dim,
        "causal": slot.is_causal, "length": slot.length,
    }  # fmt: skip
    return [
        HeadRow(
            **shared,
            head=head,
            max_logit=top[head],
            twin=twins[head],
            likeness=likeness[head],
            **{name: values[head] for name, values in means.items()},
        )
        for head in range(slot.heads)
    ]


def _means(slot: Slot) -> dict[str, list[Any]]:
    count, sampled = slot.rows[0], slot.sampled[0]
    rows = slot.rows / count.masked_fill(count == 0, torch.nan)
    few = slot.sampled / sampled.masked_fill(sampled == 0, torch.nan)
    means = dict(zip(ROWS[1:], rows[1:], strict=True))
    means |= dict(zip(SAMPLED[1:], few[1:], strict=True))
    sampled_share = means.pop("previous_of_sampled")
    whole = means["previous_share"]
    means["previous_share"] = torch.where(whole.isnan(), sampled_share, whole)
    means["deficit"] = means.pop("log_visible") - means["entropy"]
    means["mean_logit"] = means["lse"] - means["entropy"]
    means["gradient_flow"] = 1 - means["collision"]
    lists: dict[str, list[Any]] = {name: value.tolist() for name, value in means.items()}
    return lists | {"rows": count.long().tolist()}


def _twins(slot: Slot) -> tuple[list[int], list[float]]:
    """For each head the other one whose weights are most alike; -1 where there is none."""
    if slot.heads < 2:
        return [-1], [math.nan]
    norm = slot.overlap.diagonal().sqrt()
    cosine = slot.overlap / (norm[:, None] * norm).masked_fill(norm == 0, torch.nan)
    cosine = cosine.fill_diagonal_(-1)
    likeness, twin = cosine.nan_to_num(nan=-1).max(1)
    lost = likeness < 0
    return twin.masked_fill(lost, -1).tolist(), likeness.masked_fill(lost, torch.nan).tolist()


def to_json(rows: Sequence[HeadRow]) -> str:
    """Rows as JSON text; numbers that do not exist are null."""
    plain = [{k: _number(v) for k, v in asdict(row).items()} for row in rows]
    return json.dumps({"format": FORMAT, "version": VERSION, "rows": plain}, allow_nan=False)


def from_json(text: str) -> list[HeadRow]:
    """Rows that to_json wrote; raises if it is something else."""
    data = json.loads(text)
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise AttentropyError(f"this is no file of head rows ({FORMAT})")
    if data.get("version") != VERSION:
        raise AttentropyError(f"head rows of version {data.get('version')}, not {VERSION}")
    return [_row(row) for row in data["rows"]]


def _row(data: dict[str, Any]) -> HeadRow:
    known: dict[str, Any] = {k: math.nan if v is None else v for k, v in data.items()}
    return HeadRow(**known)


def _number(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


COLUMNS = {
    "entropy": "entropy", "normalized_entropy": "H / log n", "max_logit": "max logit",
    "top_probability": "top p", "sink_mass": "sink", "previous_share": "previous",
    "distance": "distance", "output_norm": "output",
}  # fmt: skip


def table(rows: Iterable[HeadRow]) -> "Table":
    """A rich table of the most telling columns; print() shows it too."""
    from attentropy.models.record.tables import Printed

    shown = Printed(title="attention heads", box=None, padding=(0, 0, 0, 1))
    shown.add_column("layer", overflow="fold")
    for title in ("head", *COLUMNS.values()):
        shown.add_column(title, justify="right", overflow="fold")
    for row in rows:
        name = row.label.rpartition(".")[0]
        cells = (f"{getattr(row, column):.3g}" for column in COLUMNS)
        shown.add_row(name, str(row.head), *cells)
    return shown


def frame(rows: Iterable[HeadRow]) -> Any:
    """A pandas frame, one line per head."""
    try:
        import pandas
    except ImportError as error:
        raise ImportError("w.frame() needs pandas: pip install pandas") from error
    return pandas.DataFrame([asdict(row) for row in rows])
