"""What a model reads as a row of tokens: one text, two texts, or the patches of a picture."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from attentropy.core.errors import ArgumentError, UnsupportedError
from attentropy.core.statistics import HeadRow
from attentropy.models.continuation import continued
from attentropy.models.generated import TokenRow
from attentropy.models.intercept.candidates import device_of
from attentropy.models.losses.probes import position_limit
from attentropy.models.losses.reading import has_decoder_beside, logits_of, read, takes
from attentropy.models.losses.tokens import token_losses
from attentropy.scans.loading import inputs
from attentropy.scans.texts.sides import Picture, Side


@dataclass(frozen=True, eq=False)
class TokenReading:
    """One forward pass of a model, and the tokens that it reads.

    Attributes:
        model: reads.
        run: one forward pass, with more arguments for the model.
        ids: all tokens, of every side; -1 where a token has no id.
        labels: each token as text.
        sides: where each text is among the tokens.
        left: number of tokens that are not read.
        generated: rows of the tokens that the model itself made, the last of `ids`.
        picture: what the tokens are patches of, if they are.
    """

    model: nn.Module
    run: Callable[..., Any]
    ids: Tensor
    labels: list[str]
    sides: list[Side]
    left: int = 0
    generated: Sequence[TokenRow] = ()
    picture: Picture | None = None

    def sides_of(self, layer: HeadRow) -> tuple[Side, Side]:
        """Where the queries and the keys of a layer are.

        Args:
            layer: a row of it.
        """
        if len(self.sides) == 1:
            return self.sides[0], self.sides[0]
        source, target = self.sides
        if layer.kind == "cross":
            return target, source
        own = source if layer.layer.startswith(f"{_encoder(self.model)}.") else target
        return own, own

    def surprise(self, layers: Sequence[HeadRow]) -> Tensor | None:
        """-log p of the token after each, [N - 1], NaN on the source; None if none is predicted.

        Args:
            layers: a row of each; one that looks ahead predicts nothing.
        """
        ahead = any(row.kind == "self" and not row.causal for row in layers)
        if self.picture is not None or (len(self.sides) == 1 and ahead):
            return None
        try:
            if len(self.sides) == 1:
                return token_losses(self.model, self.ids.view(1, -1))[0].cpu()
        except UnsupportedError:
            return None
        return self._of_target()

    def _of_target(self) -> Tensor | None:
        source, target = self.sides
        ids = self.ids[target.start :].view(1, -1)
        with torch.no_grad():
            logits = logits_of(self.run(), ids)
        if logits is None:
            return None
        logs = logits[0, :-1].float().log_softmax(-1).cpu()
        found = -logs.gather(-1, ids[0, 1:, None])[:, 0]
        return torch.cat((found.new_full((source.count,), torch.nan), found))


def of_text(
    model: nn.Module,
    tokens: inputs.Readable,
    *,
    target: Sequence[int] | Tensor | None = None,
    length: int | None = None,
    generate: int | None = None,
    label: Callable[[int], str] = str,
) -> TokenReading:
    """A text for an encoder or a decoder, or two for an encoder with a decoder.

    Args:
        model: reads.
        tokens: ids, or a string where the model has a tokenizer or reads bytes.
        target: ids that a decoder beside an encoder reads; by default the same as the encoder.
        length: number of tokens to read at most; None for all.
        generate: the largest number of tokens that the model generates.
        label: one token id to text.
    """
    text = inputs.of(tokens, model)
    two = has_decoder_beside(model)
    end = () if generate and not two else text.end
    every = torch.tensor([*text.begin, *text.ids.tolist(), *end])
    ids = every[:length]
    if len(ids) < 2:
        raise ArgumentError("length", "2 tokens or more", len(ids))
    rows: Sequence[TokenRow] = ()
    if generate:
        _check_room(model, len(ids), generate)
        target, rows = continued(model, ids, generate)
        if not two:
            ids, target = target, None
    found = _one(model, ids) if not two else _two(model, ids, target, length)
    labels = [label(token) for token in found.ids.tolist()]
    left = max(0, len(every) - len(every[:length]))
    return replace(found, labels=labels, left=left, generated=rows)


def _one(model: nn.Module, ids: Tensor) -> TokenReading:
    batch = ids.view(1, -1).to(device_of(model))
    more = {"logits_to_keep": 1} if takes(model, "logits_to_keep") else {}
    # logits of the last token only, where the model can leave out the others
    return TokenReading(
        model,
        lambda **options: read(model, batch, **(more | options)),
        ids,
        [],
        [Side("text", 0, len(ids))],
    )


def _two(
    model: nn.Module, ids: Tensor, target: Sequence[int] | Tensor | None, length: int | None
) -> TokenReading:
    other = _decoded(model, ids)[:length] if target is None else torch.as_tensor(target).long()
    if other.ndim != 1 or len(other) < 1:
        raise ArgumentError("target", "one row of ids", tuple(other.shape))
    device = device_of(model)
    batch, beside = ids.view(1, -1).to(device), other.view(1, -1).to(device)
    return TokenReading(
        model,
        lambda **options: read(model, batch, decoder_input_ids=beside, **options),
        torch.cat((ids, other)),
        [],
        [Side("source", 0, len(ids)), Side("target", len(ids), len(other))],
    )


def _decoded(model: nn.Module, ids: Tensor) -> Tensor:
    """The text as a decoder reads it: after the token that it starts with."""
    start = getattr(getattr(model, "config", None), "decoder_start_token_id", None)
    return ids if start is None else torch.cat((torch.tensor([start]), ids))


def _check_room(model: nn.Module, length: int, generate: int) -> None:
    most = position_limit(model)
    if most is not None and length + generate > most and not has_decoder_beside(model):
        rule = f"at most {max(0, most - length)} after {length} tokens, for a model of {most}"
        raise ArgumentError("generate", rule, generate)


def _encoder(model: nn.Module) -> str:
    """The name of the encoder in a model that has a decoder too."""
    get: Any = getattr(model, "get_encoder", None)
    encoder = get() if callable(get) else getattr(model, "encoder", None)
    return next((name for name, module in model.named_modules() if module is encoder), "encoder")
