"""Attention while a model generates: one row for each new token, in order.

`generate()` of transformers is followed from inside: the statistics of the last query of every
forward pass, and, where generate() asks whether to stop, the token that came of it. What it returns
stays the same.
"""

import functools
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from attentropy.core.errors import UnsupportedError
from attentropy.core.results import Stats

if TYPE_CHECKING:
    from attentropy.models.record.accumulators import Place
    from attentropy.models.record.recorder import Recorder

BEAMS = "beam search continues other sequences than it began with: generate with num_beams=1"
SEVERAL = "assisted decoding makes several tokens in one forward pass: generate without it"
SKIPPED = "forward passes of generate() were left out: watch with every=1"

ByHead = tuple[tuple[float, ...], ...]
"""A number for each layer and head."""


@dataclass(frozen=True)
class TokenRow:
    """One generated token, and the attention of the query that chose it.

    Attributes:
        run: number of the call of generate() while the model was watched, from 0.
        step: number of the token in its sequence, from 0.
        sequence: number of the sequence in the batch.
        token: its id.
        surprise: -log p(token) in nats, by the model's own logits before any processing.
        layers: names of the attention modules, as in `heads()`.
        entropy: by layer and head, in nats.
        varentropy: by layer and head.
        top_probability: the largest weight, by layer and head.
    """

    run: int
    step: int
    sequence: int
    token: int
    surprise: float
    layers: tuple[str, ...]
    entropy: ByHead
    varentropy: ByHead
    top_probability: ByHead


class Generation:
    """Follows the calls of generate() of one watch.

    Attributes:
        rows: of every token so far.
        refused: why a call was not followed; "" if all were.
        runs: number of calls of generate().
        active: a call of generate() runs.
    """

    def __init__(self) -> None:
        self.rows: list[TokenRow] = []
        self.refused = ""
        self.runs = 0
        self.active = False
        self._heads: dict[str, Tensor] = {}
        self._choices: dict[str, Tensor] = {}
        self._logits: Tensor | None = None
        self._step = 0
        self._length = 0
        self._ended: Tensor | None = None

    def clear(self) -> None:
        """Forget the rows, and go on."""
        self.rows.clear()
        self.refused = ""

    def begin(self) -> None:
        """A call of generate() starts."""
        self.runs += 1
        self._step, self._length, self._ended = 0, 0, None
        self._heads, self._logits = {}, None

    def add(self, place: "Place", stats: Stats) -> None:
        """Keep the last query of an attention call, which chooses the next token.

        Args:
            place: of the call.
            stats: of all its rows.
        """
        name = f"{place.layer}#{place.call}" if place.call else place.layer
        parts = (stats.entropy, stats.varentropy, stats.top_probability)
        last = [x.detach()[:, :, -1] for x in parts if x is not None]
        if len(last) == len(parts):  # None where weights are not probabilities
            self._heads[name] = torch.stack(last)  # [3,B,H]
            self._choices[name] = stats.visible[:, :, -1].expand_as(last[0]) > 1

    def attention(self) -> Tensor:
        """Means over the heads for the query that chooses the next token, [3,B].

        They are entropy, varentropy and the largest weight. Heads that see one key only have no
        choice and do not count; without any other head the means are 0.
        """
        if not self._heads:
            raise UnsupportedError(self.refused or SKIPPED)
        heads = torch.cat(list(self._heads.values()), -1)
        chose = torch.cat(list(self._choices.values()), -1)
        total = heads.masked_fill(~chose, 0.0).sum(-1)
        return total / chose.sum(-1).clamp(min=1)

    def running(self, count: int) -> Tensor:
        """Which of `count` sequences have not ended, [B].

        Args:
            count: number of sequences.
        """
        return torch.ones(count, dtype=torch.bool) if self._ended is None else ~self._ended

    def note_logits(self, module: nn.Module, args: Any, output: Any) -> None:
        """Keep the logits of the next token, which `output` has or is; a forward hook."""
        logits = getattr(output, "logits", output)
        self._logits = logits[:, -1].detach() if isinstance(logits, Tensor) else None

    def follow(self, ids: Tensor, *, ends: set[int]) -> None:
        """A token was chosen for every sequence.

        Args:
            ids: tokens so far [B,N], the new ones last.
            ends: ids that end a sequence.
        """
        if self._length and ids.shape[1] != self._length + 1:
            self.refused = SEVERAL
        if not self._heads:
            self.refused = self.refused or SKIPPED
        new, self._length = ids[:, -1], ids.shape[1]
        ended = torch.zeros_like(new, dtype=torch.bool) if self._ended is None else self._ended
        if not self.refused:
            self._append(new, ended)
        over = [token in ends for token in new.tolist()]
        self._ended = ended | torch.tensor(over, device=new.device)
        self._step += 1
        self._heads, self._logits = {}, None

    def _append(self, new: Tensor, ended: Tensor) -> None:
        surprise = [math.nan] * len(new)
        if self._logits is not None:
            log_p = self._logits.float().log_softmax(-1)
            surprise = (-log_p.gather(-1, new[:, None].to(log_p.device)))[:, 0].tolist()
        heads = [found.tolist() for found in self._heads.values()]
        layers = tuple(self._heads)
        for sequence, token in enumerate(new.tolist()):
            if ended[sequence]:
                continue
            entropy, varentropy, top = (
                tuple(tuple(layer[i][sequence]) for layer in heads) for i in range(3)
            )
            self.rows.append(
                TokenRow(
                    self.runs - 1,
                    self._step,
                    sequence,
                    token,
                    surprise[sequence],
                    layers,
                    entropy,
                    varentropy,
                    top,
                )
            )

    def tokens(self) -> list[TokenRow]:
        """The rows, in the order of generation; raises where they could not be followed."""
        if self.refused:
            raise UnsupportedError(f"tokens() cannot follow this: {self.refused}")
        return list(self.rows)


def followed(
    plain: Callable[..., Any], recorder: "Recorder", model: nn.Module, args: Any, kwargs: Any
) -> Any:
    """generate() with one more stopping criterion, which never stops.

    Args:
        plain: generate() of transformers.
        recorder: of the watch.
        model: generates.
        args: positional arguments of the call.
        kwargs: keyword arguments of the call.
    """
    from transformers import StoppingCriteriaList

    generation = recorder.generation = recorder.generation or Generation()
    if generation.active:
        return plain(model, *args, **kwargs)
    given = inspect.signature(plain).bind(model, *args, **kwargs).arguments
    more = given.pop("kwargs", {})
    setting = functools.partial(_setting, model, given.get("generation_config"), more)
    refused = _refused(given, setting)
    if refused:
        generation.refused = refused
        return plain(**given, **more)
    ends = setting("eos_token_id")
    ends = set() if ends is None else set(torch.as_tensor(ends).flatten().tolist())

    def never(ids: Tensor, scores: Any, **_: Any) -> Tensor:
        generation.follow(ids, ends=ends)
        return torch.zeros(len(ids), dtype=torch.bool, device=ids.device)

    asked = given.get("stopping_criteria") or []
    given["stopping_criteria"] = StoppingCriteriaList([*asked, never])
    generation.begin()
    hook = model.register_forward_hook(generation.note_logits)
    generation.active = True
    try:
        return plain(**given, **more)
    finally:
        generation.active = False
        hook.remove()


def _refused(given: dict[str, Any], setting: Callable[[str], Any]) -> str:
    """Why a call of generate() cannot be followed; "" if it can."""
    if (setting("num_beams") or 1) > 1:
        return BEAMS
    assisted = ("prompt_lookup_num_tokens", "assistant_early_exit")
    if given.get("assistant_model") is not None or any(setting(name) for name in assisted):
        return SEVERAL
    return ""


def _setting(model: nn.Module, config: Any, more: dict[str, Any], name: str) -> Any:
    """A setting of generation, as generate() will find it."""
    holders = (config, getattr(model, "generation_config", None))
    found = (more.get(name), *(getattr(holder, name, None) for holder in holders))
    return next((value for value in found if value is not None), None)
