"""Read a long text once, in pieces with a cache; ask each question from a copy of the cache."""

import copy
import time
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from attentropy.extensions.candidates import Setting, Task, applied
from attentropy.extensions.passkeys import Haystack, Question
from attentropy.models.intercept.candidates import device_of
from attentropy.models.losses.buckets import Bucket, by_position
from attentropy.models.losses.paired import stretches
from attentropy.models.losses.reading import logits_of, read
from attentropy.models.losses.tokens import next_token_losses, pieces

CHUNK = 1024


class Attempt(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One candidate on one text.

    Attributes:
        candidate: its name.
        window: the number of the text, from 0.
        losses: of the last tokens, a mean for each stretch of 64.
        buckets: loss by position.
        digits: loss of the digits of each passkey, nats per token; empty if none was asked for.
        hits: whether all digits were the most likely ones.
        seconds: the time that it took.
    """

    candidate: str
    window: int
    losses: tuple[float, ...]
    buckets: tuple[Bucket, ...]
    digits: tuple[float, ...] = ()
    hits: tuple[bool, ...] = ()
    seconds: float = 0.0


def tried(
    candidate: Setting, model: nn.Module, task: Task, text: Haystack, *, window: int, last: int
) -> Attempt:
    """Read a text as the candidate says, then ask for the passkeys in it.

    Args:
        candidate: how to read.
        model: the model; it is unchanged afterwards.
        task: what the candidate is for.
        text: tokens and questions.
        window: the number of the text.
        last: tokens at the end whose loss is judged.
    """
    began = time.perf_counter()
    ids = text.cut(task.trained if candidate.truncated else task.to)
    handle = applied(candidate, model, task)
    try:
        losses, cache = _read(model, ids[None])
        handle.require()
        answers = [_asked(model, ids, cache, question) for question in text.questions]
    finally:
        handle.undo()
    return Attempt(
        candidate=candidate.name,
        window=window,
        losses=tuple(stretches(losses[:, -last:]).mean(1).tolist()),
        buckets=tuple(by_position(losses)),
        digits=tuple(loss for loss, _ in answers),
        hits=tuple(hit for _, hit in answers),
        seconds=round(time.perf_counter() - began, 1),
    )


def _read(model: nn.Module, ids: Tensor) -> tuple[Tensor, Any]:
    """Losses [1, n - 1], and the cache after the last token; None without a cache."""
    with torch.no_grad():
        read_so_far = [*pieces(model, ids.to(device_of(model)), None, CHUNK, keep=True)]
    parts, caches = zip(*read_so_far, strict=True)
    return torch.cat(parts, 1).cpu(), caches[-1]


@torch.no_grad()
def _asked(model: nn.Module, ids: Tensor, cache: Any, question: Question) -> tuple[float, bool]:
    """Mean loss of the answer's tokens, and whether each is the most likely one."""
    asked = torch.cat([question.prompt, question.answer])
    if cache is None:
        asked = torch.cat([ids, asked])
    given = asked[None].to(device_of(model))
    more = {} if cache is None else {"past_key_values": _copy(cache), "use_cache": True}
    logits = logits_of(read(model, given, **more), given)
    assert logits is not None
    size = len(question.answer)
    scores, wanted = logits[:, -size - 1 : -1], given[:, -size:]
    loss = float(next_token_losses(scores, wanted).mean())
    return loss, bool((scores.argmax(-1) == wanted).all())


def _copy(cache: Any) -> Any:
    """A cache that grows on its own: layers of a dynamic cache never write into their tensors."""
    own = copy.copy(cache)
    own.layers = [copy.copy(layer) for layer in cache.layers]
    return own
