"""table_of(): a text as files and pages hold it.

Content is added in this order while there is room: the means of all heads and of each layer, the
rows of generated tokens, then heads one by one with their largest weights.
"""

import base64
from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor

from attentropy.models.generated import TokenRow
from attentropy.scans.texts.packing import COARSE, EXACT, packed, packed_places
from attentropy.scans.texts.records import (
    TableGenerated,
    TableLayer,
    TablePicture,
    TableSide,
    TextTable,
)
from attentropy.scans.texts.token_rows import ROW_STATISTICS
from attentropy.scans.texts.view import Head, TextView

ROOM = 3_600_000  # characters of numbers in one page
OF_TOKENS = ("entropy", "varentropy", "top_probability")  # of generated ones


def table_of(view: TextView, *, room: int = ROOM) -> TextTable:
    """The view with as many heads as there is room for, at least one.

    Args:
        view: what was measured.
        room: characters that packed numbers may take.
    """
    scopes = {"all": packed_rows(_mean(view), COARSE)}
    for layer, rows in enumerate(view.rows):
        means = {name: rows[name].nanmean(0) for name in ROW_STATISTICS}
        scopes[str(layer)] = packed_rows(means, COARSE)
    generated = _generated(view) if view.generated else None
    room -= _size(*scopes.values(), generated.numbers if generated else {})
    looks: dict[str, dict[str, str]] = {}
    for head in view.heads:
        numbers, look = _head(view, head)
        room -= _size(numbers, look)
        if room < 0 and looks:
            break
        key = f"{head[0]}.{head[1]}"
        scopes[key], looks[key] = numbers, look
    return TextTable(
        tokens=[_writable(label) for label in view.labels],
        left=view.left,
        layers=[TableLayer(row.place, row.heads, row.causal, row.kind) for row in view.layers],
        sides=[TableSide(side.name, side.start, side.count) for side in view.sides],
        scopes=scopes,
        looks=looks,
        surprise=None if view.surprise is None else packed(view.surprise, EXACT),
        unshown=len(view.heads) - len(looks),
        odd=dict(view.odd),
        generated=generated,
        picture=_picture(view),
    )


def _writable(label: str) -> str:
    """A token may be half of a character, which no file can hold."""
    return label.encode(errors="replace").decode()


def _size(*parts: dict[str, str]) -> int:
    return sum(len(text) for part in parts for text in part.values())


def _mean(view: TextView) -> dict[str, Tensor]:
    return {
        name: torch.cat([rows[name] for rows in view.rows]).nanmean(0) for name in ROW_STATISTICS
    }


def packed_rows(rows: dict[str, Tensor], bits: int) -> dict[str, str]:
    """Each statistic of the tokens, packed.

    Args:
        rows: ROW_STATISTICS, [N] each.
        bits: of the significand that are kept.
    """
    return {name: packed(rows[name], bits) for name in ROW_STATISTICS}


def _head(view: TextView, head: Head) -> tuple[dict[str, str], dict[str, str]]:
    """Statistics of one head, and its largest weights in both directions."""
    layer, number = head
    rows = {name: view.rows[layer][name][number] for name in ROW_STATISTICS}
    look = view.looks[layer]
    at = look.heads.index(number)
    return packed_rows(rows, EXACT), {
        "keys": packed_places(look.keys[at]),
        "weights": packed(look.weights[at].T, EXACT),
        "rest": packed(look.rest[at], EXACT),
        "readers": packed_places(look.readers[at]),
        "reader_weights": packed(look.reader_weights[at].T, EXACT),
        "reader_rest": packed(look.reader_rest[at], EXACT),
    }


def _generated(view: TextView) -> TableGenerated:
    rows: Sequence[TokenRow] = view.generated
    first = rows[0]
    heads = [len(layer) for layer in first.entropy]
    return TableGenerated(
        start=len(view.labels) - len(rows),
        layers=list(zip(first.layers, heads, strict=True)),
        surprise=packed(torch.tensor([row.surprise for row in rows]), EXACT),
        numbers={
            name: packed(
                torch.tensor([list(chain.from_iterable(getattr(row, name))) for row in rows]), EXACT
            )
            for name in OF_TOKENS
        },
    )


def _picture(view: TextView) -> TablePicture | None:
    if view.picture is None:
        return None
    png, *sizes = view.picture
    return TablePicture(base64.b64encode(png).decode(), *sizes)
