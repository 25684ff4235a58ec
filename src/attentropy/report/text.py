"""A text as the page shows it: tokens, numbers of each, and where chosen heads look.

Numbers are 16-bit floats, compressed. What a page has room for comes in this order: the means of
all heads and of each layer, then heads one by one with their largest weights.
"""

import base64
import zlib
from typing import Any

import numpy as np
import torch
from msgspec import to_builtins
from torch import Tensor

from attentropy.core.statistic import Statistic
from attentropy.core.statistics import TABLE
from attentropy.report.page import render
from attentropy.scans.text import Head, TextView

ROOM = 3_600_000  # characters of numbers in one page
EXACT, COARSE = 10, 6  # bits of precision of a head, and of a mean over heads
OWN = (
    Statistic(
        name="received",
        symbol="r",
        label="Received attention",
        formula="rⱼ = Σᵢ pᵢⱼ",
        meaning="What all queries give to this token; 1 is its even share.",
        low="ignored",
        high="looked at",
        range=(0.0, None),
        scale="log",
    ),
    Statistic(
        name="surprise",
        symbol="−log p",
        label="Surprise of the next token",
        formula="−log p(next token)",
        meaning="How little the model expected the token after this one; of all heads together.",
        low="expected",
        high="surprising",
        unit="nats",
        range=(0.0, None),
    ),
)
OF_TABLE = ("entropy", "varentropy", "distance", "sink_mass", "top_probability")
STATISTICS = (*(TABLE[name] for name in OF_TABLE), *OWN)
OF_HEADS = tuple(one.name for one in STATISTICS if one.name != "surprise")


def text_page(view: TextView, *, name: str) -> str:
    """One text and where heads look in it, as the text of one HTML file.

    Args:
        view: what was measured.
        name: that of the model.
    """
    count = f"{len(view.labels):,} tokens, {sum(row.heads for row in view.layers):,} heads."
    return render(
        text_payload(view, name=name),
        title=f"{name} · text",
        summary=[f"Where the attention of {name} looks in a text of {count}"],
    )


def text_payload(view: TextView, *, name: str, room: int = ROOM) -> dict[str, Any]:
    """What report/assets/text.js reads.

    Args:
        view: what was measured.
        name: that of the model.
        room: characters that packed numbers may take.
    """
    scopes = {"all": _packed_rows(_mean(view), COARSE)}
    for layer, rows in enumerate(view.rows):
        means = {name: rows[name].nanmean(0) for name in OF_HEADS}
        scopes[str(layer)] = _packed_rows(means, COARSE)
    looks: dict[str, dict[str, str]] = {}
    room -= sum(len(text) for scope in scopes.values() for text in scope.values())
    for head in view.heads:
        numbers, look = _head(view, head)
        room -= sum(len(text) for part in (numbers, look) for text in part.values())
        if room < 0 and looks:
            break
        key = f"{head[0]}.{head[1]}"
        scopes[key], looks[key] = numbers, look
    return {
        "kind": "text",
        "name": name,
        "tokens": view.labels,
        "left": view.left,
        "layers": [
            {"name": row.place, "heads": row.heads, "causal": row.causal, "kind": row.kind}
            for row in view.layers
        ],
        "statistics": [to_builtins(one) for one in STATISTICS if _is_known(view, one.name)],
        "surprise": None if view.surprise is None else packed(view.surprise, EXACT),
        "scopes": scopes,
        "looks": looks,
        "unshown": len(view.heads) - len(looks),
    }


def _is_known(view: TextView, name: str) -> bool:
    return name != "surprise" or view.surprise is not None


def _mean(view: TextView) -> dict[str, Tensor]:
    return {name: torch.cat([rows[name] for rows in view.rows]).nanmean(0) for name in OF_HEADS}


def _packed_rows(rows: dict[str, Tensor], bits: int) -> dict[str, str]:
    return {name: packed(rows[name], bits) for name in OF_HEADS}


def _head(view: TextView, head: Head) -> tuple[dict[str, str], dict[str, str]]:
    """Statistics of one head, and its largest weights in both directions."""
    layer, number = head
    rows = {name: view.rows[layer][name][number] for name in OF_HEADS}
    look = view.looks[layer]
    at = look.heads.index(number)
    return _packed_rows(rows, EXACT), {
        "keys": packed_places(look.keys[at]),
        "weights": packed(look.weights[at].T, EXACT),
        "rest": packed(look.rest[at], EXACT),
        "readers": packed_places(look.readers[at]),
        "reader_weights": packed(look.reader_weights[at].T, EXACT),
        "reader_rest": packed(look.reader_rest[at], EXACT),
    }


def packed(values: Tensor, bits: int) -> str:
    """Numbers as base64 of compressed 16-bit floats, all low bytes before all high ones.

    Args:
        values: any shape; NaN stays NaN.
        bits: bits of the significand that are kept, at most 10.
    """
    half = values.clamp(max=65504).half().contiguous().numpy().view(np.uint16).astype(np.uint32)
    drop = 10 - bits
    if drop:
        half = np.where((half & 0x7C00) == 0x7C00, half, (half + (1 << drop >> 1)) >> drop << drop)
    return _compressed(half.astype("<u2"))


def packed_places(places: Tensor) -> str:
    """Indices of tokens [N,T] as base64 of compressed integers, rank by rank; none is the largest.

    They are 16 bits wide where that is enough for N, else 32, all bytes of one weight together.

    Args:
        places: indices below N, or -1.
    """
    wide = places.shape[0] >= 0xFFFF
    none = 0xFFFFFFFF if wide else 0xFFFF
    found = places.T.masked_fill(places.T < 0, none).contiguous().numpy()
    return _compressed(found.astype("<u4" if wide else "<u2"))


def _compressed(values: np.ndarray) -> str:
    planes = np.ascontiguousarray(values.reshape(-1, 1).view(np.uint8).T)
    return base64.b64encode(zlib.compress(planes.tobytes(), 9)).decode()
