"""The results of a watch: one row of numbers per head and place."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import torch
from torch import Tensor

from attentropy.core import formats
from attentropy.core.errors import AttentropyError
from attentropy.core.notebook.cards import card
from attentropy.core.statistics import NAMES, TABLE, HeadRow
from attentropy.models.record.accumulators import Place, Slot
from attentropy.models.record.measures import ROWS
from attentropy.models.record.sampled import SAMPLED

if TYPE_CHECKING:
    from rich.table import Table

Means = dict[str, Tensor]


class HeadRows(
    msgspec.Struct,
    tag_field="format",
    tag="attentropy.rows",
    kw_only=True,
    forbid_unknown_fields=True,
):
    """A file of head rows."""

    version: Literal[2] = 2
    rows: list[HeadRow]


# readings of the statistics that are made of other means, not of sums of their own
DERIVED: dict[str, Callable[[Means], Tensor]] = {
    "deficit": lambda means: means["log_visible"] - means["entropy"],
    "mean_logit": lambda means: means["lse"] - means["entropy"],
    "gradient_flow": lambda means: 1 - means["collision"],
}


def rows_of(place: Place, slot: Slot, index: int) -> list[HeadRow]:
    """The rows of one place, which is the `index`-th of the model.

    Args:
        place: where the numbers come from.
        slot: its sums.
        index: the place of the layer in the order of the model.
    """
    twins, likeness = _twins(slot)
    top = slot.top.masked_fill(slot.rows[0] == 0, torch.nan).tolist()
    numbers = {**_means(slot), "max_logit": top, "likeness": likeness}
    counts = slot.rows[0].long().tolist()
    return [
        HeadRow(
            layer=place.layer,
            index=index,
            call=place.call,
            phase="step" if place.phase == "step" else "forward",
            kind="cross" if place.kind == "cross" else "window" if slot.is_window else "self",
            head=head,
            heads=slot.heads,
            head_dim=slot.head_dim,
            causal=slot.is_causal,
            length=slot.length,
            rows=counts[head],
            twin=twins[head],
            **{name: numbers[name][head] for name in NAMES},
        )
        for head in range(slot.heads)
    ]


def _means(slot: Slot) -> dict[str, list[float]]:
    count, sampled = slot.rows[0], slot.sampled[0]
    rows = slot.rows / count.masked_fill(count == 0, torch.nan)
    few = slot.sampled / sampled.masked_fill(sampled == 0, torch.nan)
    means: Means = dict(zip(ROWS[1:], rows[1:], strict=True))
    means |= dict(zip(SAMPLED[1:], few[1:], strict=True))
    whole = means["previous_share"]
    means["previous_share"] = torch.where(whole.isnan(), means["previous_of_sampled"], whole)
    means |= {name: read(means) for name, read in DERIVED.items()}
    return {name: means[name].tolist() for name in NAMES if name in means}


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
    """Rows as JSON text; numbers that are not finite are null.

    Args:
        rows: what to write.
    """
    return formats.encode(HeadRows(rows=list(rows))).decode()


def from_json(text: str) -> list[HeadRow]:
    """Rows that to_json wrote; raises AttentropyError if the text is something else.

    Args:
        text: what to_json gave.
    """
    return formats.decode(text, HeadRows, name="this text", error=AttentropyError).rows


def table(rows: Iterable[HeadRow]) -> "Table":
    """A rich table of the most important columns; print() shows it too.

    Args:
        rows: what to show.
    """
    from attentropy.models.record.tables import Printed

    columns = {name: one.column for name, one in TABLE.items() if one.column}
    shown = Printed(title="attention heads", box=None, padding=(0, 0, 0, 1))
    shown.add_column("layer", overflow="fold")
    for title in ("head", *columns.values()):
        shown.add_column(title, justify="right", overflow="fold")
    for row in rows:
        cells = (f"{row[name]:.3g}" for name in columns)
        shown.add_row(row.label.rpartition(".")[0], str(row.head), *cells)
    return shown


def html(rows: Iterable[HeadRow], *, title: str) -> str:
    """The columns of `table` as HTML for a notebook.

    Args:
        rows: what to show.
        title: what they are.
    """
    columns = {name: one.column for name, one in TABLE.items() if one.column}
    return card(
        title,
        head=["layer", "head", *columns.values()],
        rows=[
            (row.label.rpartition(".")[0], row.head, *(row[name] for name in columns))
            for row in rows
        ],
    )


def frame(rows: Iterable[HeadRow]) -> Any:
    """A pandas frame, one line per head.

    Args:
        rows: what to show.
    """
    try:
        import pandas
    except ImportError as error:
        raise ImportError("w.frame() needs pandas: pip install pandas") from error
    return pandas.DataFrame([msgspec.structs.asdict(row) for row in rows])
