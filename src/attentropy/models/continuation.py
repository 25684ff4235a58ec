"""continued(): the most likely next tokens of a text, with the attention behind each."""

from typing import Any

import torch
from torch import Tensor, nn

from attentropy.core.errors import ArgumentError, UnsupportedError
from attentropy.models.generated import Generation, TokenRow
from attentropy.models.intercept.candidates import device_of
from attentropy.models.losses.reading import has_decoder_beside, logits_of, read
from attentropy.models.watch import Watch

NO_NEXT = "{name} does not predict the next token, so it cannot continue a text"


def continued(model: nn.Module, ids: Tensor, count: int) -> tuple[Tensor, list[TokenRow]]:
    """Continue a text with the most likely token, up to `count` times, and return the rows of each.

    A transformers model generates with its cache, and stops where a text ends; any other model
    reads the whole text again for every token. In a model with encoder and decoder, the encoder
    reads `ids`, and the decoder's text is returned.

    Args:
        model: a decoder, or an encoder with a decoder.
        ids: the text, [N].
        count: number of new tokens at most.

    >>> from attentropy.lab.embedded import load_embedded
    >>> prompt = torch.tensor(list(b"To be, or not to "))
    >>> found, rows = continued(load_embedded(), prompt, 3)
    >>> len(found), len(rows), rows[0].step
    (20, 3, 0)
    """
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ArgumentError("count", "an integer >= 1", repr(count))
    text, watch = ids.view(1, -1).to(device_of(model)), Watch(model, sample=1).of_all_heads()
    with torch.no_grad(), watch:
        found = _generated(model, text, count) if _generates(model) else _read(watch, text, count)
    return found[0].cpu(), watch.tokens()


def _generates(model: nn.Module) -> bool:
    can: Any = getattr(model, "can_generate", None)
    return callable(can) and bool(can())


def _generated(model: Any, ids: Tensor, count: int) -> Tensor:
    settings = model.generation_config
    pad = settings.pad_token_id
    if pad is None:  # one text has no padding; generate() warns if it may not know its id
        ends = settings.eos_token_id
        pad = ends[0] if isinstance(ends, list) else ends
    found: Tensor = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=count,
        do_sample=False,
        num_beams=1,
        pad_token_id=0 if pad is None else pad,
        temperature=None,
        top_p=None,
        top_k=None,
    )
    return found


def _read(watch: Watch, ids: Tensor, count: int) -> Tensor:
    """Read the whole text for each token, followed as generate() is."""
    if has_decoder_beside(watch.model):
        raise UnsupportedError(NO_NEXT.format(name=type(watch.model).__name__))
    generation = watch.recorder.generation = Generation()
    generation.begin()
    generation.active = True
    for _ in range(count):
        logits = logits_of(read(watch.model, ids), ids)
        if logits is None or not all(row.causal for row in watch.heads() if row.kind == "self"):
            raise UnsupportedError(NO_NEXT.format(name=type(watch.model).__name__))
        generation.note_logits(watch.model, (), logits)
        ids = torch.cat((ids, logits[:, -1:].argmax(-1)), 1)
        generation.follow(ids, ends=set())
    return ids
