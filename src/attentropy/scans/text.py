"""text_view(): which words does a head look at, in this text?"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attentropy.core.errors import ArgumentError, UnsupportedError
from attentropy.core.statistics import HeadRow
from attentropy.models.losses.reading import device_of, has_decoder_beside, read, takes
from attentropy.models.losses.tokens import token_losses
from attentropy.models.record.recorder import Recorder
from attentropy.models.watch import Watch
from attentropy.scans.loading import inputs
from attentropy.scans.measuring.measure import forward_rows
from attentropy.scans.measuring.token_rows import LookRecorder, Looks, RowRecorder

MOST = 16
"""Weights that are kept of each token, in both directions."""

Head = tuple[int, int]
"""A layer, by its place in the order of the model, and a head of it."""


@dataclass(frozen=True, eq=False)
class TextView:
    """One text, what every head makes of each of its tokens, and where chosen heads look.

    Attributes:
        ids: the tokens [N], with special tokens as the model's tokenizer adds them.
        labels: each token as text.
        layers: a row of each layer, in the order of the model.
        rows: statistics of every token by layer, [H,N] each; see ROW_STATISTICS.
        surprise: -log p of the token after each, [N - 1]; None if the model predicts none.
        heads: the heads whose largest weights are known, the most telling first.
        looks: these weights by layer.
        left: number of tokens of the text that were not read.
    """

    ids: Tensor
    labels: list[str]
    layers: list[HeadRow]
    rows: list[dict[str, Tensor]]
    surprise: Tensor | None
    heads: list[Head]
    looks: dict[int, Looks]
    left: int = 0


def text_view(
    model: nn.Module,
    tokens: inputs.Readable,
    *,
    heads: Sequence[Head] | None = None,
    most_heads: int = 64,
    length: int | None = None,
    label: Callable[[int], str] = str,
) -> TextView:
    """Read one text, and keep the 16 largest weights of each token, as query and as key.

    The model reads the text twice: once for the statistics of all heads, once for the weights of
    chosen heads. Weights exist for a few rows at a time, so that memory is O(n).

    Args:
        model: an encoder, a decoder, or both; of both, the same text is read by each.
        tokens: ids, or a string where the model has a tokenizer or reads bytes.
        heads: (layer, head) pairs whose weights are kept; by default those that look at single
            keys beyond the first one most, of every layer in turn.
        most_heads: number of heads that are chosen if `heads` is not given.
        length: number of tokens to read at most; None for all.
        label: one token id to text.

    >>> from attentropy.lab.embedded import load_embedded
    >>> view = text_view(load_embedded(), "To be, or not to be", most_heads=2)
    >>> view.looks[view.heads[0][0]].weights.shape
    torch.Size([1, 19, 16])
    """
    text = inputs.of(tokens, model)
    every = torch.tensor([*text.begin, *text.ids.tolist(), *text.end])
    ids = every[:length]
    if len(ids) < 2:
        raise ArgumentError("length", "2 tokens or more", len(ids))
    first = RowRecorder()
    layers = [row for row in forward_rows(_read(model, ids, first).heads()) if row.head == 0]
    layers = [row for row in layers if row.place in first.rows]
    rows = [first.rows[row.place] for row in layers]
    if not layers:
        raise UnsupportedError("no layer of the model has softmax weights, which a text shows")
    chosen = choose(rows, most_heads) if heads is None else _checked(heads, layers)
    second = LookRecorder(_by_place(chosen, layers), most=min(MOST, len(ids)))
    _read(model, ids, second)
    looks = {
        i: second.looks[row.place] for i, row in enumerate(layers) if row.place in second.looks
    }
    return TextView(
        ids,
        [label(token) for token in ids.tolist()],
        layers,
        rows,
        _surprise(model, ids, layers),
        chosen,
        looks,
        len(every) - len(ids),
    )


def _read(model: nn.Module, ids: Tensor, recorder: Recorder) -> Watch:
    """One forward pass; logits of the last token only, where the model can leave out the others."""
    watch = Watch(model)
    watch.recorder = recorder
    options = {"logits_to_keep": 1} if takes(model, "logits_to_keep") else {}
    with torch.no_grad(), watch:
        read(model, ids.view(1, -1).to(device_of(model)), **options)
    return watch


def choose(rows: list[dict[str, Tensor]], most: int) -> list[Head]:
    """Heads that look at single keys: those of each layer in turn, the sharpest first.

    Args:
        rows: statistics of every token by layer.
        most: number of heads.
    """
    ranks = []
    for layer, found in enumerate(rows):
        sharp = (found["top_probability"] - found["sink_mass"]).clamp(min=0).nan_to_num(0.0).mean(1)
        order = sharp.argsort(descending=True, stable=True).tolist()
        ranks += [(rank, -float(sharp[head]), layer, head) for rank, head in enumerate(order)]
    return [(layer, head) for _, _, layer, head in sorted(ranks)[:most]]


def _checked(heads: Sequence[Head], layers: list[HeadRow]) -> list[Head]:
    for layer, head in heads:
        if not (0 <= layer < len(layers) and 0 <= head < layers[layer].heads):
            rule = f"of a model of {len(layers)} layers"
            if 0 <= layer < len(layers):
                rule = f"of a layer of {layers[layer].heads} heads"
            raise ArgumentError("heads", rule, f"{layer}.{head}")
    return list(dict.fromkeys(heads))


def _by_place(heads: list[Head], layers: list[HeadRow]) -> dict[str, tuple[int, ...]]:
    return {
        row.place: tuple(sorted(head for layer, head in heads if layer == index))
        for index, row in enumerate(layers)
    }


def _surprise(model: nn.Module, ids: Tensor, layers: list[HeadRow]) -> Tensor | None:
    """The loss of every next token of a decoder."""
    if has_decoder_beside(model) or not all(row.causal for row in layers if row.kind != "cross"):
        return None
    try:
        return token_losses(model, ids.view(1, -1))[0].cpu()
    except UnsupportedError:
        return None
