"""Sequences that ranks share: where the tokens of a pass stand, padding, and what a cache holds.

A model is called with this rank's tokens. Its hooks here give it their positions in the whole
sequence, take its padding mask over, and remember the caches that it fills. A pass that continues
such a cache reads the same new tokens on every rank. The keys of the prompt stay where they are;
those of new tokens, which every rank has, count on one of them.
"""

import inspect
import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attentropy.core.errors import UnsupportedError
from attentropy.distributed.cache import HeldKeys
from attentropy.distributed.groups import peers
from attentropy.distributed.layouts import Placed, Spread, padded

CHUNK = 256  # new tokens in a row whose keys count on the same rank


@dataclass(eq=False)
class CachedShare:
    """What a rank knows of a cache that all fill.

    Attributes:
        placed: this rank's part of the prompt.
        padding: tokens of the prompt that are not padding, bool [B, whole]; None if all are.
        new: number of tokens after the prompt.
    """

    placed: Placed
    padding: Tensor | None
    new: int = 0

    @property
    def own(self) -> int:
        """Number of tokens of the prompt that are here."""
        return sum(run.stop - run.start for run in self.placed.runs)

    @property
    def whole(self) -> int:
        """Number of all tokens."""
        return self.placed.whole + self.new

    def held(self, columns: int, *, ranks: int, rank: int) -> tuple[HeldKeys, ...]:
        """The keys that count on this rank.

        Args:
            columns: number of keys that the cache of a layer holds here; a layer with a window
                drops the oldest.
            ranks: number of ranks.
            rank: which one.
        """
        runs, first = [], columns - self.own - self.new
        for run in self.placed.runs:
            runs.append((run.start, run.stop, first))
            first += run.stop - run.start
        for start in range(rank * CHUNK, self.new, ranks * CHUNK):
            begin = self.placed.whole + start
            runs.append((begin, min(begin + CHUNK, self.whole), first + start))
        found = []
        for start, stop, column in runs:
            lost = max(0, -column)
            if start + lost < stop:
                here = slice(column + lost, column + stop - start)
                found.append(HeldKeys(range(start + lost, stop), here))
        return tuple(found)


class Sequences:
    """Hooks of a transformers model, and what the attention calls of a running pass ask for.

    Args:
        spread: how sequences are spread over ranks.

    Attributes:
        padding: tokens of the whole that are not padding, bool [B, whole]; None if all are.
        cached: the cache that the running pass continues.
    """

    def __init__(self, spread: Spread) -> None:
        self.spread = spread
        self.padding: Tensor | None = None
        self.cached: CachedShare | None = None
        self._prompt: CachedShare | None = None
        self._caches: weakref.WeakKeyDictionary[Any, CachedShare] = weakref.WeakKeyDictionary()

    def __reduce__(self) -> tuple[Any, ...]:
        return Sequences, (self.spread,)

    def before(
        self, model: nn.Module, args: Any, kwargs: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        """A forward pre-hook: positions of the whole sequence, and no mask of this rank's own.

        Args:
            model: the model.
            args: positional arguments of its call.
            kwargs: keyword arguments of its call.
        """
        names = list(inspect.signature(model.forward).parameters)
        given = dict(zip(names, args, strict=False)) | kwargs
        tokens = given.get("input_ids")
        tokens = given.get("inputs_embeds") if tokens is None else tokens
        if tokens is None:
            return args, kwargs
        mask = given.get("attention_mask")
        if mask is not None and (not isinstance(mask, Tensor) or mask.dim() != 2):
            raise refusal(model, "a mask other than a causal one")
        known = self._continued(model, given.get("past_key_values"))
        places = self._begin(tokens, mask) if known is None else self._continue(known, tokens)
        if given.get("position_ids") is None:
            self._check_positions(model)
            given["position_ids"] = places.expand(tokens.shape[0], -1)
        if "attention_mask" in names:
            # without one, transformers takes jumps of the positions for other documents
            every = torch.ones(tokens.shape[:2], dtype=torch.int64, device=tokens.device)
            given["attention_mask"] = every if known is None else None
        return (), given

    def after(self, model: nn.Module, args: Any, output: Any) -> None:
        """A forward hook that is always called: stores the cache, drops the state of the pass.

        Args:
            model: the model.
            args: of its call.
            output: what it returned; None if it raised.
        """
        cache = getattr(output, "past_key_values", None)
        if self._prompt is not None and hasattr(cache, "get_seq_length"):
            self._caches[cache] = self._prompt
        self.padding = self.cached = self._prompt = None

    def _continued(self, model: nn.Module, cache: Any) -> CachedShare | None:
        """What is known of a cache that holds something; None if it is empty."""
        if cache is None or not hasattr(cache, "get_seq_length") or not cache.get_seq_length():
            return None
        known = self._caches.get(cache)
        if known is None or cache.get_seq_length() != known.own + known.new:
            raise refusal(model, "a cache that was not filled under it, or that was cut")
        return known

    def _begin(self, tokens: Tensor, mask: Tensor | None) -> Tensor:
        """Positions of the tokens of a prompt; agrees with the other ranks on the padding."""
        me, layout, device = peers(self.spread.group), self.spread.layout, tokens.device
        own = tokens.shape[1]
        every = me.gather(torch.tensor([own, mask is not None], device=device))
        sizes = [int(x[0]) for x in every]
        layout.check_sizes("the sequence", sizes)
        whole = sum(sizes)
        placed = Placed(whole, layout.runs(whole, ranks=me.size, rank=me.rank))
        if any(bool(x[1]) for x in every):
            shown = tokens.new_ones(tokens.shape[:2]) if mask is None else mask
            parts = me.gather(padded((shown != 0).to(torch.uint8), 1, max(sizes)))
            kept = [part[:, :size] for part, size in zip(parts, sizes, strict=True)]
            real = layout.join(kept, dim=1).bool()
            self.padding = None if bool(real.all()) else real
        self._prompt = CachedShare(placed, self.padding)
        return positions(placed, device=device)

    def _continue(self, known: CachedShare, tokens: Tensor) -> Tensor:
        """Positions of new tokens, which every rank has."""
        first = known.whole
        known.new += tokens.shape[1]
        self.cached = known
        if known.padding is not None:
            after = known.padding.new_ones(len(known.padding), known.new)
            self.padding = torch.cat([known.padding, after], 1)
        return torch.arange(first, known.whole, device=tokens.device)

    def _check_positions(self, model: nn.Module) -> None:
        """Models count positions with padding in front of the text, or without: the caller says."""
        real = self.padding
        if real is not None and bool((real[:, 1:] & ~real[:, :-1]).any()):
            raise refusal(model, "padding before tokens without position_ids")


def refusal(module: nn.Module, what: str) -> UnsupportedError:
    """The error for what cannot be spread.

    Args:
        module: the module that needs it.
        what: what cannot be spread.
    """
    return UnsupportedError(
        f"context_parallel does not support {what}, which {type(module).__name__} uses"
    )


def positions(placed: Placed, *, device: torch.device) -> Tensor:
    """Global positions of this rank's tokens, [n].

    Args:
        placed: which part of the sequence the rank holds.
        device: of the result.
    """
    runs = [torch.arange(run.start, run.stop, device=device) for run in placed.runs]
    return torch.cat(runs) if runs else torch.arange(0, device=device)
