"""What a watch does with each attention call: decides whether it counts, and adds it up."""

import torch
from torch import Tensor, nn

from attentropy.core.results import Stats
from attentropy.models.intercept.tracking import in_backward
from attentropy.models.record.accumulators import Owner
from attentropy.models.record.measures import measure
from attentropy.models.record.model_call import ModelCall


class Recorder:
    """Counts forward passes of the watched model and fills the slots of its owners.

    `every` records one forward pass in so many; `keep` is "mean" or "rows"; `sample` bounds the
    rows per call whose weights are looked at one by one; `verify` is that of watch(). `missed`
    says of each module that could not be recorded how it attends, and `beside` of each whose own
    function serves why.
    """

    def __init__(self, *, every: int, keep: str, sample: int | None, verify: str = "first") -> None:
        self.every, self.keep, self.sample, self.verify = every, keep, sample, verify
        self.owners: list[Owner] = []
        self.forwards = 0
        self.inside = False
        self.recording = True
        self.training_only = False
        self.missed: dict[str, str] = {}
        self.beside: dict[str, str] = {}
        self._counted: Tensor | None = None

    def begin(self, model: nn.Module) -> None:
        """A forward pass of the whole model starts."""
        self.recording = self.forwards % self.every == 0
        if self.training_only and not model.training:
            self.recording = False
        self.forwards += 1
        self.inside = True
        self._counted = None
        for owner in self.owners:
            owner.call = -1

    def end(self) -> None:
        """The forward pass of the whole model ends."""
        self.inside = False

    def wants(self) -> bool:
        """Is the running call to be recorded?"""
        return self.recording and not in_backward()

    def record(self, owner: Owner, asked: ModelCall, out: Tensor | None, stats: Stats) -> None:
        """Add one call to the slot of its place.

        Args:
            owner: the module that makes the call.
            asked: the call.
            out: its output [B,H,Q,Dv]; None where only the weights are known.
            stats: the statistics of its rows.
        """
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
        phase = "step" if asked.mask.step else "forward"
        slot = owner.slot(phase, stats.visible.shape[1], device=stats.visible.device)
        slot.describe(asked)
        slot.add(sums)
        if kept is not None:
            slot.kept.append(kept)

    def _rows(self, asked: ModelCall) -> int | None:
        """How many rows to sample: more of short ones, and of long ones a few megabytes at most."""
        if self.sample is None:
            return None
        batch, heads, _, keys, _ = asked.mask.seen.extent
        row = max(1, batch * heads * keys)
        return max(1, min(max(self.sample, SMALL // row), SAMPLE_ELEMENTS // row))

    def _padding(self, asked: ModelCall) -> Tensor | None:
        """Queries that count; cross-attention takes those of the self-attention before it."""
        counted = asked.mask.counted
        if torch.compiler.is_compiling():
            return counted
        if asked.mask.positions is not None:
            self._counted = counted
            return counted
        before, (batch, _, queries) = self._counted, asked.call.q.shape[:3]
        if before is None or before.shape[-1] != queries or before.shape[0] not in (1, batch):
            return None
        return before


SMALL = 1 << 16
SAMPLE_ELEMENTS = 1 << 22


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
