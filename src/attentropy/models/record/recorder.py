"""The recorder of a watch: it decides whether an attention call counts, and adds it up."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from attentropy.core.results import Stats
from attentropy.models.intercept.arguments import in_windows, real_queries
from attentropy.models.intercept.census import Census, is_new, learn, slip
from attentropy.models.intercept.tracking import in_backward
from attentropy.models.record.accumulators import CallSizes, Owner
from attentropy.models.record.measures import measure
from attentropy.models.record.model_call import ModelCall

if TYPE_CHECKING:
    from attentropy.models.generated import Generation
    from attentropy.models.tensor_parallel import SharedHeads


class PassNotes(NamedTuple):
    """Notes on a forward pass that has not ended.

    Attributes:
        passing: `inside`, `recording` and `census` of the recorder.
        owners: what each owner has noted.
    """

    passing: "tuple[bool, bool, Census | None]"
    owners: list[dict[str, Any]]


class Recorder:
    """Counts forward passes of the watched model and fills the slots of its owners.

    `every` records one forward pass in so many; `keep` is "mean" or "rows"; `sample` bounds the
    rows per call whose weights are looked at one by one; `verify` is that of watch(). `missed` says
    how each module attends that could not be recorded, and `beside` why a module's own function
    serves. `counts` allows a `census`, which exists while one runs. `together` are the processes
    that share heads, where each records the heads of all.
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
        self.counts = False
        self._census: Census | None = None
        self.generation: Generation | None = None
        self.together: SharedHeads | None = None
        kind = type(self)
        self._is_plain = kind.prepare is Recorder.prepare and kind.record is Recorder.record

    def switch(self, notes: "PassNotes | None") -> "PassNotes":
        """Continue with the notes of another forward pass; returns the current notes.

        Passes that take turns in one model each have their own notes.

        Args:
            notes: what this function gave when that pass was left; None for a new one.
        """
        now = PassNotes(
            (self.inside, self.recording, self._census), [owner.notes() for owner in self.owners]
        )
        there = PassNotes((False, True, None), [{}] * len(self.owners)) if notes is None else notes
        self.inside, self.recording, self._census = there.passing
        for owner, noted in zip(self.owners, there.owners, strict=True):
            owner.go_on(noted)
        return now

    def begin(self, model: nn.Module, args: Any = (), kwargs: Any = None) -> None:
        """A forward pass of the whole model starts.

        Args:
            model: the model.
            args: positional arguments of its call.
            kwargs: keyword arguments of its call.
        """
        self.recording = self.forwards % self.every == 0
        if self.training_only and not model.training:
            self.recording = False
        self.forwards += 1
        self.inside = True
        for owner in self.owners:
            if owner.calls:
                owner.calls.clear()
        if self._may_count() and is_new(model, args, kwargs or {}):
            self._census = Census()
            self._census.__enter__()

    @property
    def census(self) -> Census | None:
        """The census of the running forward pass, in the thread in which it was started."""
        return self._census if self._census is not None and self._census.is_own else None

    def _may_count(self) -> bool:
        """May a census be taken of the forward pass that starts?"""
        wanted = self.counts and self.recording and self.verify != "never"
        return wanted and self._census is None and not in_backward()

    def end(self) -> None:
        """The forward pass of the whole model ends."""
        census = self.census
        if census is not None:
            self._census = None
            census.__exit__(None, None, None)
            self._take(census)
        self.inside = False

    def _take(self, census: Census) -> None:
        """Record each softmax that turned out to be attention, and note what slipped by."""
        for one in census.found:
            learn(one)
            if one.used and one.record is not None:
                one.record()
        for module, how in census.slipped():
            slip(module, how)

    def wants(self) -> bool:
        """Should the running call be recorded?"""
        return self.recording and not in_backward()

    def is_steady(self) -> bool:
        """Is there nothing else to do about a call than to record it?"""
        if self._census is not None and self.census is not None:
            return False
        if self.keep != "mean" or self.verify == "always" or not self._is_plain:
            return False
        if self.together is not None:
            return False
        return self.generation is None or not self.generation.active

    def whole(
        self, owner: Owner, asked: ModelCall, out: Tensor | None, stats: Stats
    ) -> tuple[ModelCall, Tensor | None, Stats]:
        """What to record of a call: all heads, where processes share them.

        Args:
            owner: the module that makes the call.
            asked: the call.
            out: its output [B,H,Q,Dv]; None where only the weights are known.
            stats: the statistics of its rows.
        """
        if self.together is None or not owner.is_cut:
            return asked, out, stats
        return self.together.whole(asked, out, stats)

    def record(self, owner: Owner, asked: ModelCall, out: Tensor | None, stats: Stats) -> None:
        """Add one call to the slot of its place.

        Args:
            owner: the module that makes the call.
            asked: the call.
            out: its output [B,H,Q,Dv]; None where only the weights are known.
            stats: the statistics of its rows.
        """
        self.prepare(owner, asked, out, stats)()

    def prepare(
        self, owner: Owner, asked: ModelCall, out: Tensor | None, stats: Stats
    ) -> Callable[[], None]:
        """Measure one call, and return what adds it to the slot of its place.

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
                counted=real_queries_of(asked),
                sample=self.sampled_rows(asked),
                every_row=self.keep == "rows",
            )
        where = owner.place(
            "step" if asked.mask.step else "forward",
            stats.visible.shape[1],
            kind="cross" if asked.is_cross else "self",
            operator="softmax" if asked.is_by_hand else "attend",
        )
        batch, _, queries = asked.call.q.shape[:3]
        sizes = CallSizes.of(asked, window=asked.in_blocks or in_windows(batch, queries))
        device = stats.visible.device

        def commit() -> None:
            place = owner.counted(where, inside=self.inside)
            slot = owner.slot_of(place, device=device)
            slot.describe(sizes)
            slot.add(sums)
            if kept is not None:
                slot.kept.append(kept)
            if self.generation is not None and self.generation.active and self.inside:
                self.generation.add(place, stats)

        return commit

    def sampled_rows(self, asked: ModelCall) -> int | None:
        """How many rows to sample: all of a short call, a few megabytes at most if rows are long.

        Args:
            asked: the call.
        """
        if self.sample is None:
            return None
        batch, heads, queries, keys, _ = asked.mask.seen.extent
        row = max(1, batch * heads * keys)
        most = max(self.sample, queries) if queries * row <= SMALL else self.sample
        return max(1, min(most, SAMPLE_ELEMENTS // row))


def real_queries_of(asked: ModelCall) -> Tensor | None:
    """Queries that are not padding, broadcastable to [B,H,Q]; None if all count.

    Args:
        asked: the call that is running.
    """
    batch, _, queries = asked.call.q.shape[:3]
    real = real_queries(batch, queries, cross=asked.is_cross, step=asked.mask.step)
    if asked.mask.blind is None:
        return real
    return ~asked.mask.blind if real is None else real & ~asked.mask.blind


SMALL = 1 << 14
SAMPLE_ELEMENTS = 1 << 22


def listed(missed: dict[str, str]) -> str:
    """What `missed` says, in a sentence."""
    return f"nothing was recorded of {each(missed)}"


def each(told: dict[str, str]) -> str:
    """Names of modules with their reasons; modules with the same reason stand together.

    >>> each({"a": "by hand", "b": "by hand", "c": "nested tensors"})
    'a, b (by hand); c (nested tensors)'
    """
    ways = sorted(set(told.values()))
    groups = ([name or "the model" for name in told if told[name] == way] for way in ways)
    return "; ".join(f"{', '.join(g)} ({way})" for g, way in zip(groups, ways, strict=True))
