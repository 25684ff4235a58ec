"""Attention maps of the beginning of the text: one plain pass, and every weight of it."""

import base64
import zlib
from collections.abc import Callable

import torch
from torch import Tensor, nn

from attentropy.core.results import Stats
from attentropy.core.statistics import HeadRow
from attentropy.core.visibility import ALL
from attentropy.kernels.tiled.logits import row_logits
from attentropy.models.intercept.candidates import device_of
from attentropy.models.losses.reading import read
from attentropy.models.record.accumulators import Owner
from attentropy.models.record.model_call import ModelCall
from attentropy.models.record.recorder import Recorder
from attentropy.models.watch import Watch
from attentropy.scans.schema import Maps

SIDES = (256, 128, 64, 32, 16)
ROOM = 1_300_000  # bytes of all maps before compression
LEVELS = 32  # shades that a map distinguishes; more only cost space


class _Mapper(Recorder):
    """Keeps the weights of every self-attention call."""

    def __init__(self) -> None:
        super().__init__(every=1, keep="mean", sample=1)
        self.maps: dict[str, Tensor] = {}

    def prepare(
        self, owner: Owner, asked: ModelCall, out: Tensor | None, stats: Stats
    ) -> Callable[[], None]:
        commit, call = super().prepare(owner, asked, out, stats), sum(owner.calls.values())
        if asked.call.q.shape[2] == asked.call.k.shape[2] and stats.lse is not None:
            logits = row_logits(asked.call, ALL)[0]
            weights = (logits - stats.lse[0, ..., None]).exp().nan_to_num(0.0)
            self.maps[f"{owner.name}#{call}" if call else owner.name] = weights.float()
        return commit


def draw_maps(
    model: nn.Module, tokens: Tensor, layers: list[HeadRow], *, label: Callable[[int], str]
) -> Maps | None:
    """Maps of the first tokens, at most 256, as large as a page of so many heads has room for.

    Args:
        model: the model.
        tokens: one row of ids.
        layers: a row of each layer, in the order of the model.
        label: one token id to text.
    """
    side = side_for(sum(layer.heads for layer in layers), len(tokens))
    if side is None:
        return None
    watch = Watch(model)
    watch.recorder = mapper = _Mapper()
    watch.of_all_heads()
    with torch.no_grad(), watch:
        read(model, tokens[:side].view(1, -1).to(device_of(model)))
    data, peak = {}, {}
    for index, layer in enumerate(layers):
        for head, weights in enumerate(mapper.maps.get(layer.place, ())):
            data[f"{index}.{head}"], peak[f"{index}.{head}"] = pack(weights)
    labels = [label(token) for token in tokens[:side].tolist()]
    return Maps(length=side, side=side, labels=labels, data=data, peak=peak) if data else None


def side_for(heads: int, tokens: int) -> int | None:
    """The largest side for which the maps of all heads have room; None if the text is too short.

    Args:
        heads: the number of heads.
        tokens: the number of tokens that there are.
    """
    fits = (side for side in SIDES if heads * side * side <= ROOM and side <= tokens)
    return next(fits, None)


def pack(weights: Tensor) -> tuple[str, float]:
    """[side, side] weights as base64 of compressed bytes, and the largest weight."""
    peak = float(weights.max())
    shares = (weights / peak).clamp(0, 1).sqrt() if peak > 0 else torch.zeros_like(weights)
    shades = (shares * (LEVELS - 1)).round() * (255 / (LEVELS - 1))
    data = shades.round().to(torch.uint8).cpu().numpy().tobytes()
    return base64.b64encode(zlib.compress(data, 9)).decode(), float(f"{peak:.5g}")
