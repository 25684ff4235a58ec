"""One length: windows of it through the watched model, and the loss of the text beside.

Memory is that of one forward pass: rows are folded into bins after each.
"""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attentropy.models.record.rows import HeadRow
from attentropy.models.watch import Watch
from attentropy.scans.judging.statistics import DIAGNOSTIC, STATISTIC
from attentropy.scans.measuring.along import Along
from attentropy.scans.schema import Layer, Measure, Number, ScanError

CHUNK = 128  # positions whose logits are compared with the text at a time


class Found(NamedTuple):
    """What one length gave: the record, and the layers that it is about."""

    measure: Measure
    layers: list[Layer]


def measure(model: nn.Module, windows: Iterable[Tensor], *, tick: Callable[[int], None]) -> Found:
    """Read the windows ([B, n] each, the same n); `tick` hears the tokens done."""
    began = time.perf_counter()
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    along, loss, predicted, sequences, length = Along(), 0.0, 0, 0, 0
    with torch.no_grad(), Watch(model, keep="rows") as watch:
        for window in windows:
            ids = window.to(device)
            sequences, length = sequences + ids.shape[0], ids.shape[1]
            nats, count = text_loss(logits_of(read(model, ids), ids), ids)
            loss, predicted = loss + nats, predicted + count
            watch.require()
            along.add(watch, weight=ids.shape[0])
            tick(ids.numel())
    rows = [row for row in watch.heads() if row.phase == "forward"]
    layers = [_layer(heads) for heads in by_layer(rows)]
    is_reader = predicted > 0 and all(layer.causal for layer in layers)
    mean = loss / predicted if is_reader else None
    found = Measure(
        length=length,
        sequences=sequences,
        tokens=sequences * length,
        seconds=round(time.perf_counter() - began, 4),
        statistics=tables(rows),
        profile=along.profile(),
        loss=mean,
        perplexity=None if mean is None else math.exp(min(mean, 700.0)),
    )
    return Found(found, layers)


def read(model: nn.Module, ids: Tensor) -> Any:
    """One forward pass, without a cache where the model would make one.

    A model of an encoder and a decoder reads the same text with both.
    """
    config = getattr(model, "config", None)
    options: dict[str, Any] = {}
    if getattr(config, "use_cache", False):
        options["use_cache"] = False
    if has_decoder_beside(model):
        options["decoder_input_ids"] = ids
    return model(ids, **options)


def has_decoder_beside(model: nn.Module) -> bool:
    """Does a decoder read besides what the encoder reads?"""
    return bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))


def text_loss(logits: Tensor | None, ids: Tensor) -> tuple[float, int]:
    """Negative log-likelihood of each next token, summed, and how many there were."""
    if logits is None:
        return 0.0, 0
    total = torch.zeros((), dtype=torch.float64, device=ids.device)
    for row, row_ids in zip(logits, ids, strict=True):  # rows are contiguous: nothing is copied
        for here, next_ids in zip(row[:-1].split(CHUNK), row_ids[1:].split(CHUNK), strict=True):
            total += F.cross_entropy(here.float(), next_ids, reduction="sum").double()
    return float(total), ids.shape[0] * (ids.shape[1] - 1)


def by_layer(rows: Sequence[HeadRow]) -> list[list[HeadRow]]:
    """Rows of one place of the model together, in order."""
    return [list(heads) for _, heads in groupby(rows, key=lambda row: row.index)]


def tables(rows: Sequence[HeadRow]) -> dict[str, list[list[Number]]]:
    """[layer][head] for every statistic."""
    layers = by_layer(rows)
    return {
        key: [[number(getattr(row, key)) for row in heads] for heads in layers]
        for key in (*STATISTIC, *DIAGNOSTIC)
    }


def number(value: float) -> Number:
    """A finite number to seven significant digits, None for the others.

    >>> number(0.123456789), number(float("nan"))
    (0.1234568, None)
    """
    return float(f"{value:.7g}") if math.isfinite(value) else None


def logits_of(output: Any, ids: Tensor) -> Tensor | None:
    """The output if it scores every token of the vocabulary after every position."""
    found = getattr(output, "logits", output)
    if not isinstance(found, Tensor) or found.shape[:2] != ids.shape or found.ndim != 3:
        return None
    return found if found.shape[-1] > int(ids.max()) else None


def _layer(heads: list[HeadRow]) -> Layer:
    first = heads[0]
    if [row.head for row in heads] != list(range(first.heads)):
        raise ScanError(f"{first.layer} has heads {[row.head for row in heads]}, not all of them")
    return Layer(
        name=f"{first.layer}#{first.call}" if first.call else first.layer,
        heads=first.heads,
        head_dim=first.head_dim,
        kind="cross" if first.kind == "cross" else "self",
        causal=first.causal,
    )
