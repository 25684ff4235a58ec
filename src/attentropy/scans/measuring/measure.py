"""One length: windows of it through the watched model, and the loss of the text beside.

Memory is that of one forward pass: rows are folded into bins after each.
"""

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec
import torch
from torch import Tensor, nn

from attentropy.core.statistics import HeadRow, by_place
from attentropy.models.losses.buckets import by_position
from attentropy.models.losses.reading import device_of, logits_of, read
from attentropy.models.losses.tokens import next_token_losses
from attentropy.models.record.coverage import ModuleCoverage
from attentropy.models.record.profile import Bins, Profile, merged
from attentropy.models.watch import Watch
from attentropy.scans.schema import Measure

BINS = 24  # of query positions in a profile


@dataclass(frozen=True)
class Reading:
    """What was measured at one length, and the loss of every token, which no file keeps.

    Attributes:
        measure: for the file.
        losses: [W, length - 1] of all windows; None if the model does not predict the next token.
        coverage: what was seen of each module with attention.
    """

    measure: Measure
    losses: Tensor | None
    coverage: list[ModuleCoverage]


def measure(model: nn.Module, windows: Iterable[Tensor]) -> Reading:
    """Read windows of one length with the model, and measure every head.

    Args:
        model: the model.
        windows: ids [B, n] each, all of the same n.
    """
    began = time.perf_counter()
    device = device_of(model)
    passes: list[list[Profile]] = []
    sizes: list[int] = []
    lost: list[Tensor] = []
    length = 0
    with torch.no_grad(), Watch(model, keep="rows") as watch:
        for window in windows:
            ids = window.to(device)
            logits, length = logits_of(read(model, ids), ids), ids.shape[1]
            if logits is not None:
                lost.append(next_token_losses(logits[:, :-1], ids[:, 1:]).cpu())
            watch.require()
            passes.append(_folded(watch))
            sizes.append(len(ids))
    rows = forward_rows(watch.heads())
    losses = torch.cat(lost) if lost and all(row.causal for row in rows) else None
    mean = None if losses is None else float(losses.double().mean())
    found = Measure(
        length=length,
        sequences=sum(sizes),
        tokens=sum(sizes) * length,
        seconds=round(time.perf_counter() - began, 4),
        rows=rows,
        profiles=[_rounded(merged(parts, sizes)) for parts in zip(*passes, strict=True)],
        loss=mean,
        perplexity=None if mean is None else math.exp(min(mean, 700.0)),
        loss_by_position=[] if losses is None else by_position(losses),
    )
    return Reading(found, losses, watch.coverage())


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
