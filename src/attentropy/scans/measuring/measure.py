"""One length: windows of it through the watched model, and the loss of the text beside.

Memory is that of one forward pass: rows are folded into bins after each.
"""

import math
import time
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attentropy.core.statistics import HeadRow, by_place
from attentropy.models.record.profile import Bins, Profile, merged
from attentropy.models.watch import Watch
from attentropy.scans.schema import Measure

CHUNK = 128  # positions whose logits are compared with the text at a time
BINS = 24  # of query positions in a profile


def measure(model: nn.Module, windows: Iterable[Tensor], *, tick: Callable[[int], None]) -> Measure:
    """Read windows of one length with the model, and measure every head.

    Args:
        model: the model.
        windows: ids [B, n] each, all of the same n.
        tick: is told how many tokens were read, after every forward pass.
    """
    began = time.perf_counter()
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    passes: list[list[Profile]] = []
    sizes: list[int] = []
    loss, predicted, length = 0.0, 0, 0
    with torch.no_grad(), Watch(model, keep="rows") as watch:
        for window in windows:
            ids = window.to(device)
            nats, count = text_loss(logits_of(read(model, ids), ids), ids)
            loss, predicted, length = loss + nats, predicted + count, ids.shape[1]
            watch.require()
            passes.append(_folded(watch))
            sizes.append(len(ids))
            tick(ids.numel())
    rows = forward_rows(watch.heads())
    reads_on = predicted > 0 and all(row.causal for row in rows)
    mean = loss / predicted if reads_on else None
    return Measure(
        length=length,
        sequences=sum(sizes),
        tokens=sum(sizes) * length,
        seconds=round(time.perf_counter() - began, 4),
        rows=rows,
        profiles=[_rounded(merged(parts, sizes)) for parts in zip(*passes, strict=True)],
        loss=mean,
        perplexity=None if mean is None else math.exp(min(mean, 700.0)),
    )


def forward_rows(rows: Iterable[HeadRow]) -> list[HeadRow]:
    """The rows of forward passes, their places numbered from 0."""
    places = by_place(row for row in rows if row.phase == "forward")
    return [
        msgspec.structs.replace(row, index=index)
        for index, heads in enumerate(places)
        for row in heads
    ]


def _folded(watch: Watch) -> list[Profile]:
    """The profiles of one pass; the rows that the watch kept of it are let go."""
    found = [one for one in watch.profiles(BINS) if one.phase == "forward"]
    for _, slot in watch.places():
        slot.kept.clear()
    return found


def _rounded(profile: Profile) -> Profile:
    """Curves to five significant digits: there are many of them in a file."""

    def short(curve: Bins) -> Bins:
        return [None if value is None else float(f"{value:.5g}") for value in curve]

    return msgspec.structs.replace(
        profile,
        visible=short(profile.visible),
        entropy=[short(curve) for curve in profile.entropy],
        distance=[short(curve) for curve in profile.distance],
    )


def read(model: nn.Module, ids: Tensor) -> Any:
    """One forward pass, without a cache where the model would make one.

    A model of an encoder and a decoder reads the same text with both.

    Args:
        model: the model.
        ids: tokens [B, n].
    """
    config = getattr(model, "config", None)
    options: dict[str, Any] = {}
    if getattr(config, "use_cache", False):
        options["use_cache"] = False
    if has_decoder_beside(model):
        options["decoder_input_ids"] = ids
    return model(ids, **options)


def has_decoder_beside(model: nn.Module) -> bool:
    """True if a decoder reads besides what the encoder reads."""
    return bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))


def text_loss(logits: Tensor | None, ids: Tensor) -> tuple[float, int]:
    """Negative log-likelihood of each next token, summed, and the number of tokens predicted.

    Args:
        logits: [B, n, vocabulary]; None gives (0, 0).
        ids: the tokens [B, n].
    """
    if logits is None:
        return 0.0, 0
    total = torch.zeros((), dtype=torch.float64, device=ids.device)
    for row, row_ids in zip(logits, ids, strict=True):  # rows are contiguous: nothing is copied
        for here, next_ids in zip(row[:-1].split(CHUNK), row_ids[1:].split(CHUNK), strict=True):
            total += F.cross_entropy(here.float(), next_ids, reduction="sum").double()
    return float(total), ids.shape[0] * (ids.shape[1] - 1)


def logits_of(output: Any, ids: Tensor) -> Tensor | None:
    """The output if it scores every token of the vocabulary after every position.

    Args:
        output: what the model returned.
        ids: tokens [B, n] that it read.
    """
    found = getattr(output, "logits", output)
    if not isinstance(found, Tensor) or found.shape[:2] != ids.shape or found.ndim != 3:
        return None
    return found if found.shape[-1] > int(ids.max()) else None
