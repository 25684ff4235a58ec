"""text_view(): which words does a head look at, in this text?"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from attentropy.core.errors import ArgumentError, UnsupportedError
from attentropy.core.statistics import HeadRow
from attentropy.models.generated import TokenRow
from attentropy.models.record.recorder import Recorder
from attentropy.models.watch import Watch
from attentropy.scans.loading import inputs
from attentropy.scans.measuring.measure import forward_rows
from attentropy.scans.texts.reading import TokenReading, of_text
from attentropy.scans.texts.sides import Picture, Side
from attentropy.scans.texts.token_rows import LookRecorder, Looks, RowRecorder

MOST = 16
"""Weights that are kept of each token, in both directions."""

Head = tuple[int, int]
"""A layer, by its place in the order of the model, and a head of it."""


@dataclass(frozen=True, eq=False)
class TextView:
    """One text: statistics of each token in every head, and where chosen heads look.

    Tokens of an encoder and of a decoder follow one another, and `sides` says where each begins.
    Numbers of a token that a layer does not read are NaN, and its places -1.

    Attributes:
        ids: the tokens [N], with special tokens as the model's tokenizer adds them.
        labels: each token as text.
        layers: a row of each layer, in the order of the model.
        rows: statistics of every token by layer, [H,N] each; see ROW_STATISTICS.
        surprise: -log p of the token after each, [N - 1]; None if the model predicts none.
        heads: the heads whose largest weights are known, the sharpest first.
        looks: these weights by layer.
        left: number of tokens of the text that were not read.
        sides: which tokens belong together; one side, or a source and a target.
        generated: rows of the tokens that the model made itself, the last ones.
        picture: what the tokens are patches of, if they are.
        odd: layers that are not shown, with the reason.
    """

    ids: Tensor
    labels: list[str]
    layers: list[HeadRow]
    rows: list[dict[str, Tensor]]
    surprise: Tensor | None
    heads: list[Head]
    looks: dict[int, Looks]
    left: int = 0
    sides: list[Side] = field(default_factory=list)
    generated: Sequence[TokenRow] = ()
    picture: Picture | None = None
    odd: dict[str, str] = field(default_factory=dict)


def text_view(
    model: nn.Module,
    tokens: inputs.Readable,
    *,
    heads: Sequence[Head] | None = None,
    most_heads: int = 64,
    length: int | None = None,
    label: Callable[[int], str] = str,
    target: Sequence[int] | Tensor | None = None,
    generate: int | None = None,
) -> TextView:
    """Read one text, and keep the 16 largest weights of each token, as query and as key.

    The model reads the text twice: once for the statistics of all heads, once for the weights of
    chosen heads. Weights exist for a few rows at a time, so that memory is O(n).

    Args:
        model: an encoder, a decoder, or both.
        tokens: ids, or a string where the model has a tokenizer or reads bytes.
        heads: (layer, head) pairs whose weights are kept; by default those that look at single
            keys beyond the first one most, of every layer in turn.
        most_heads: number of heads that are chosen if `heads` is not given.
        length: number of tokens to read at most; None for all.
        label: one token id to text.
        target: ids that a decoder beside an encoder reads; by default the same text.
        generate: number of tokens that the model generates first, always the most likely one.

    >>> from attentropy.lab.embedded import load_embedded
    >>> view = text_view(load_embedded(), "To be, or not to be", most_heads=2)
    >>> view.looks[view.heads[0][0]].weights.shape
    torch.Size([1, 19, 16])
    """
    reading = of_text(model, tokens, target=target, length=length, generate=generate, label=label)
    return view_of(reading, heads=heads, most_heads=most_heads)


def view_of(
    reading: TokenReading, *, heads: Sequence[Head] | None = None, most_heads: int = 64
) -> TextView:
    """Read what `reading` says, once for statistics and once for weights.

    Args:
        reading: a model and its tokens.
        heads: (layer, head) pairs whose weights are kept.
        most_heads: number of heads that are chosen if `heads` is not given.
    """
    layers, rows, odd = measured(reading)
    chosen = choose(rows, most_heads) if heads is None else _checked(heads, layers)
    looks = _looks(reading, layers, chosen)
    return TextView(
        ids=reading.ids,
        labels=reading.labels,
        layers=layers,
        rows=rows,
        surprise=reading.surprise(layers),
        heads=chosen,
        looks=looks,
        left=reading.left,
        sides=reading.sides,
        generated=reading.generated,
        picture=reading.picture,
        odd=odd,
    )


def measured(
    reading: TokenReading, recorder: RowRecorder | None = None
) -> tuple[list[HeadRow], list[dict[str, Tensor]], dict[str, str]]:
    """Layers that can be shown, statistics of their tokens [H,N], and why others cannot.

    Args:
        reading: a model and its tokens.
        recorder: keeps the rows.
    """
    recorder = recorder or RowRecorder()
    found = [row for row in forward_rows(_read(reading, recorder).heads()) if row.head == 0]
    layers, rows = [], []
    odd = dict(recorder.odd)
    for row in found:
        if row.place not in recorder.rows:
            odd.setdefault(row.place, "its weights are not softmax")
            continue
        queries, keys = reading.sides_of(row)
        own = recorder.rows[row.place]
        sizes = own["entropy"].shape[1], own["received"].shape[1]
        if sizes != (queries.count, keys.count):
            odd[row.place] = f"{sizes[0]} queries and {sizes[1]} keys do not form a row of tokens"
            continue
        layers.append(row)
        rows.append(_placed(own, queries, keys, len(reading.ids)))
    if not layers:
        why = "; ".join(f"{place}: {reason}" for place, reason in list(odd.items())[:3])
        raise UnsupportedError(
            "no layer of the model has softmax weights, which a text shows"
            + f" ({why})" * bool(why)
        )
    return layers, rows, odd


def _read(reading: TokenReading, recorder: Recorder) -> Watch:
    watch = Watch(reading.model)
    watch.recorder = recorder
    watch.of_all_heads()
    with torch.no_grad(), watch:
        reading.run()
    return watch


def _placed(rows: dict[str, Tensor], queries: Side, keys: Side, count: int) -> dict[str, Tensor]:
    """Statistics of a layer among all tokens: of its queries, and `received` of its keys."""
    found = {}
    for name, values in rows.items():
        side = keys if name == "received" else queries
        found[name] = values.new_full((len(values), count), torch.nan)
        found[name][:, side.start : side.start + side.count] = values
    return found


def _looks(reading: TokenReading, layers: list[HeadRow], chosen: list[Head]) -> dict[int, Looks]:
    by_place = {
        row.place: tuple(sorted(head for layer, head in chosen if layer == index))
        for index, row in enumerate(layers)
    }
    recorder = LookRecorder(by_place, most=min(MOST, max(side.count for side in reading.sides)))
    _read(reading, recorder)
    found = {}
    for index, row in enumerate(layers):
        if row.place in recorder.looks:
            queries, keys = reading.sides_of(row)
            found[index] = recorder.looks[row.place].placed(queries, keys, len(reading.ids))
    return found


def choose(rows: list[dict[str, Tensor]], most: int) -> list[Head]:
    """Heads that look at single keys: those of each layer in turn, the sharpest first.

    Args:
        rows: statistics of every token by layer.
        most: number of heads.
    """
    ranks = []
    for layer, found in enumerate(rows):
        sharp = (found["top_probability"] - found["sink_mass"]).clamp(min=0)
        sharp = sharp.nanmean(1).nan_to_num(0.0)
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
