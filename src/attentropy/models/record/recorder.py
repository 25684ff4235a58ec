"""What a watch does with each attention call: decides whether it counts, and adds it up."""

from typing import Any

import torch
from torch import Tensor, nn

from attentropy.core.results import Stats
from attentropy.models.intercept.autograd import in_backward
from attentropy.models.record.accumulators import Owner
from attentropy.models.record.measures import measure
from attentropy.models.record.model_call import Asked
from attentropy.models.record.visibility import Sight


class Recorder:
    """Counts forward passes of the watched model and fills the slots of its owners.

    `every` records one forward pass in so many; `keep` is "mean" or "rows"; `sample` bounds the
    rows per call whose weights are looked at one by one. `missed` says by what a module attended
    that could not be recorded.
    """

    def __init__(self, *, every: int, keep: str, sample: int | None) -> None:
        self.every, self.keep, self.sample = every, keep, sample
        self.owners: list[Owner] = []
        self.forwards = 0
        self.inside = False
        self.recording = True
        self.training_only = False
        self.missed: dict[str, str] = {}
        self._counted: Tensor | None = None

    def begin(self, model: nn.Module, *_: Any) -> None:
        """A forward pass of the whole model starts."""
        if torch.compiler.is_compiling():
            return
        self.recording = self.forwards % self.every == 0
        if self.training_only and not model.training:
            self.recording = False
        self.forwards += 1
        self.inside = True
        self._counted = None
        for owner in self.owners:
            owner.call = -1

    def end(self, *_: Any) -> None:
        """It ended."""
        if not torch.compiler.is_compiling():
            self.inside = False

    def enter(self, owner: Owner) -> None:
        """The forward of an owner starts; its calls are told apart within one pass."""
        owner.call = owner.call + 1 if self.inside else 0

    def wants(self) -> bool:
        """Is the present call to be recorded?"""
        return self.recording and not in_backward()

    def record(self, owner: Owner, asked: Asked, out: Tensor | None, stats: Stats) -> None:
        """Add one call to the slot of its place."""
        # products under autocast would be of low precision
        with torch.autocast(stats.collision.device.type, enabled=False):
            sums, kept = measure(
                asked,
                out,
                stats,
                counted=self._padding(asked),
                sample=self._rows(asked),
                every_row=self.keep == "rows",
            )
        slot = owner.slot(phase_of(asked.sight), asked.sizes[1], device=stats.visible.device)
        slot.describe(asked)
        slot.add(sums)
        if kept is not None:
            slot.kept.append(kept)

    def _rows(self, asked: Asked) -> int | None:
        """How many rows to sample: more of short ones, and of long ones a few megabytes at most."""
        if self.sample is None:
            return None
        batch, heads, _, keys = asked.sizes
        row = max(1, batch * heads * keys)
        return max(1, min(max(self.sample, SMALL // row), SAMPLE_ELEMENTS // row))

    def _padding(self, asked: Asked) -> Tensor | None:
        """Queries that count; cross-attention takes those of the self-attention before it."""
        counted = asked.sight.counted()
        if torch.compiler.is_compiling():
            return counted
        if not asked.cross:
            self._counted = counted
            return counted
        before = self._counted
        fits = before is not None and before.shape[-1] == asked.sizes[2]
        fits = fits and before is not None and before.shape[0] in (1, asked.sizes[0])
        return before if fits else None


SMALL = 1 << 16
SAMPLE_ELEMENTS = 1 << 22


def phase_of(sight: Sight) -> str:
    """Phase "step" where queries continue a cache, else "forward"."""
    if sight.own is None or sight.queries >= sight.keys:
        return "forward"
    # at the start of a static cache, which is longer than what is filled, nothing is continued
    return "step" if torch.compiler.is_compiling() or int(sight.own[0]) > 0 else "forward"


def softmax_stats(s: Tensor, p: Tensor, seen: Tensor) -> Stats:
    """Statistics of rows whose logits and weights [B,H,Q,K] are there already."""
    wide = p if p.dtype == torch.float64 else p.float()
    logits = s.to(wide.dtype)
    top, argmax = logits.max(-1)
    return Stats(
        entropy=torch.special.entr(wide).sum(-1),
        lse=logits.logsumexp(-1),
        max_logit=top,
        argmax=argmax,
        collision=wide.square().sum(-1),
        visible=seen.sum(-1),
    )


def listed(missed: dict[str, str]) -> str:
    """What `missed` says, in a sentence."""
    return f"nothing was recorded of {each(missed)}"


def each(told: dict[str, str]) -> str:
    """Names of modules with what is told of them, those of one reason together.

    >>> each({"a": "by hand", "b": "by hand", "c": "nested tensors"})
    'a, b (by hand); c (nested tensors)'
    """
    ways = sorted(set(told.values()))
    groups = ([name or "the model" for name in told if told[name] == way] for way in ways)
    return "; ".join(f"{', '.join(g)} ({way})" for g, way in zip(groups, ways, strict=True))


def heads_of(module: nn.Module) -> int | None:
    """The number of heads that a module says it has."""
    for holder in (module, getattr(module, "config", None)):
        for name in ("num_heads", "n_heads", "num_attention_heads", "n_head", "nhead"):
            value = getattr(holder, name, None)
            if isinstance(value, int):
                return value
    return None
