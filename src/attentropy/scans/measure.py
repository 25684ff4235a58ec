"""One length: windows of it through the watched model, added up; the loss of the text beside."""

import math
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attentropy.scans import collect
from attentropy.scans.schema import Layer, Measure, ScanError
from attentropy.scans.watching import Observed, observe

CHUNK = 128  # positions whose logits are compared with the text at a time


def measure(
    model: nn.Module, windows: Iterable[Tensor], *, tick: Callable[[int], None]
) -> tuple[Measure, list[Layer]]:
    """Read the windows ([B, n] each, the same n); `tick` hears the tokens done."""
    began = time.perf_counter()
    sums: list[collect.Layer] = []
    layers: list[Layer] = []
    loss, predicted, sequences, length = 0.0, 0, 0, 0
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    for window in windows:
        ids = window.to(device)
        sequences, length = sequences + ids.shape[0], ids.shape[1]
        seen, output = observe(model, ids)
        if not sums:
            layers = [_layer(call) for call in seen]
            sums = [collect.Layer(length, call.heads) for call in seen]
        _add(sums, seen)
        if all(layer.causal for layer in layers):
            nats, count = text_loss(_logits(output, ids), ids)
            loss, predicted = loss + nats, predicted + count
        tick(ids.numel())
    mean = loss / predicted if predicted else None
    found = Measure(
        length=length,
        sequences=sequences,
        tokens=sequences * length,
        seconds=round(time.perf_counter() - began, 4),
        statistics=collect.tables(sums),
        profile=collect.profile(sums),
        loss=mean,
        perplexity=None if mean is None else math.exp(min(mean, 700.0)),
    )
    return found, layers


def text_loss(logits: Tensor | None, ids: Tensor) -> tuple[float, int]:
    """Negative log-likelihood of each next token, summed, and how many there were."""
    if logits is None:
        return 0.0, 0
    total = torch.zeros((), dtype=torch.float64, device=ids.device)
    for start in range(0, ids.shape[1] - 1, CHUNK):
        end = min(start + CHUNK, ids.shape[1] - 1)
        here = logits[:, start:end].flatten(0, 1).float()
        next_ids = ids[:, start + 1 : end + 1].flatten()
        total += F.cross_entropy(here, next_ids, reduction="sum").double()
    return float(total), ids.shape[0] * (ids.shape[1] - 1)


def _logits(output: Any, ids: Tensor) -> Tensor | None:
    """The output if it scores every token of the vocabulary after every position."""
    found = getattr(output, "logits", output)
    if not isinstance(found, Tensor) or found.shape[:2] != ids.shape or found.ndim != 3:
        return None
    return found if found.shape[-1] > int(ids.max()) else None


def _layer(call: Observed) -> Layer:
    return Layer(
        name=call.name,
        heads=call.heads,
        head_dim=call.head_dim,
        kind="cross" if call.kind == "cross" else "self",
        causal=call.causal,
    )


def _add(sums: list[collect.Layer], seen: list[Observed]) -> None:
    if len(sums) != len(seen):
        raise ScanError(f"the model called attention {len(seen)} times, before {len(sums)} times")
    for total, call in zip(sums, seen, strict=True):
        total.add(call.rows, visible=call.visible)
