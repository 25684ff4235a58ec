"""watch(): see the attention of any model while it runs.

    with at.watch(model) as w:
        model(**batch)
    w.heads()[0].entropy

Attention is taken over at two places, the eager functions of transformers and torch's
scaled_dot_product_attention. It is only observed in calls of attend(), which layers of
attentropy.nn make, and, for code that computes attention by hand, at its softmax. The first call of
every module is compared with the model's own function, which stays in use where the two differ, and
wherever dropout draws weights: outputs are those of the model. The first forward pass is also
checked below Python, so that missed attention is known. Modules whose attention cannot be recorded
are named when the watch stops: in a warning, or in NothingRecorded if nothing else was recorded.
`w.coverage()` lists every module.
"""

import warnings
from collections.abc import Iterable
from contextlib import ExitStack
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from torch import nn

from attentropy.core.errors import ArgumentError, ArgumentTypeError, AttentropyError
from attentropy.core.notebook.cards import card
from attentropy.models.intercept import (
    candidates,
    compute,
    early,
    huggingface,
    registry,
    repeated,
    sdpa,
    tracking,
)
from attentropy.models.intercept.arguments import TELLING, names_of
from attentropy.models.intercept.by_hand import softmax
from attentropy.models.intercept.candidates import device_of
from attentropy.models.intercept.census import slip_of
from attentropy.models.intercept.verify import MODES, is_known
from attentropy.models.record import reduce, rows
from attentropy.models.record.accumulators import Owner, Place, Slot
from attentropy.models.record.coverage import ModuleCoverage, covered
from attentropy.models.record.profile import Profile, profiles
from attentropy.models.record.recorder import Recorder, listed
from attentropy.models.record.rows import HeadRow
from attentropy.models.tensor_parallel import SharedHeads, shared_heads

if TYPE_CHECKING:
    from rich.table import Table

    from attentropy.models.generated import TokenRow


W = TypeVar("W", bound="Watch")


class NothingRecorded(AttentropyError, RuntimeError):
    """A watch saw no attention; the message says why and what to do."""


def watch(
    model: nn.Module,
    *,
    every: int = 1,
    keep: str = "mean",
    sample: int | None = 8,
    verify: str = "first",
) -> "Watch":
    """Collect statistics of every attention call of `model` while the `with` block runs.

    Args:
        model: any module; transformers models, torch's own, or hand-written ones.
        every: record one forward pass in so many.
        keep: "mean" holds sums only; "rows" keeps every row too, for profiles along the sequence.
        sample: how many rows of a long call are looked at key by key, for distance, previous
            share, received concentration, spread, positional share and twins; short calls (up to
            2^14 weights) are looked at whole. None for all rows of any call, at n x n cost.
        verify: "first" computes the first call that a module makes in each way by the model's own
            function too, and compares; "always" every call, and "never" none. A module whose output
            differs keeps its own function. "never" checks no operators below Python either: missed
            attention is not named.
    """
    return Watch(model, every=every, keep=keep, sample=sample, verify=verify)


class Watch:
    """A running watch: `start` and `stop`, or a `with` block; then read `heads()`."""

    def __init__(
        self,
        model: nn.Module,
        *,
        every: int = 1,
        keep: str = "mean",
        sample: int | None = 8,
        verify: str = "first",
    ) -> None:
        _check(model, every, keep, sample, verify)
        self.model = model
        self.recorder = Recorder(every=every, keep=keep, sample=sample, verify=verify)
        self._undo: ExitStack | None = None
        self._shared: tuple[Any, reduce.Shared] | None = None
        self._elsewhere: list[Owner] = []  # layers that other processes hold
        self._order: list[str] = []  # of the layers of all processes
        self._told: set[str] = set()
        self._named: list[tuple[str, nn.Module]] = []

    def start(self) -> "Watch":
        """Take over the model's attention."""
        if self._undo is not None:
            raise AttentropyError("this watch has started already")
        structure = candidates.Structure.of(self.model)
        if structure.is_whole:
            self._sharing = None
        with ExitStack() as undo:
            self._own(undo, structure.named)
            self._take_over(undo, structure)
            self._undo = undo.pop_all()
        return self

    def stop(self) -> None:
        """Put everything back; what was recorded stays."""
        with registry.alone():
            undo, self._undo = self._undo, None
            if undo is not None:
                undo.close()
        if undo is not None:
            self._note_slips(self._named)
            self._named = []  # nothing of the model is kept alive
            self._tell_missed()

    def __enter__(self) -> "Watch":
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        if kind is None:
            self.require()

    def heads(self) -> list[HeadRow]:
        """One row per head and place, in the order of the model."""
        self.require()
        found = []
        for index, (place, slot) in enumerate(self.places()):
            found += rows.rows_of(place, slot, index)
        return found

    def places(self) -> list[tuple[Place, Slot]]:
        """Where attention was recorded, with its sums."""
        owners = [*self.recorder.owners, *self._elsewhere]
        if self._elsewhere:
            owners.sort(key=lambda owner: self._order.index(owner.name))
        return [
            (place, slot)
            for owner in owners
            for place, slot in sorted(owner.slots.items(), key=lambda item: item[0])
            if slot.length or bool(slot.rows[0].any())
        ]

    def profiles(self, bins: int = 32) -> list[Profile]:
        """Entropy and distance along the sequence, one entry per place; needs keep="rows".

        Args:
            bins: number of bins that the sequence is cut into.
        """
        if self.recorder.keep != "rows":
            raise ArgumentError("keep", '"rows" for profiles', repr(self.recorder.keep))
        return [profiles(place, slot, bins) for place, slot in self.places() if slot.kept]

    def coverage(self) -> list[ModuleCoverage]:
        """The status of each module: verified, beside, partly, unseen or no attention, and why.

        Lists modules that attend, and those that may: modules named attention, and layers of
        hybrids.

        >>> import torch, attentropy as at
        >>> layer = torch.nn.MultiheadAttention(8, 2, batch_first=True)
        >>> x = torch.ones(1, 3, 8)
        >>> with at.watch(layer) as w:
        ...     _ = layer(x, x, x, need_weights=False)
        >>> [(row.module, row.status) for row in w.coverage()]
        [('', 'verified')]
        """
        modules = dict(candidates.may_attend(self.model))
        self._note_slips(modules.items())
        return covered(
            self.recorder,
            verified=lambda name: is_known(modules[name]),
            might=lambda name: candidates.might_attend(name, modules[name]),
        )

    def tokens(self) -> "list[TokenRow]":
        """One row for each token that `generate()` made while the model was watched, in order.

        A row has entropy, varentropy and the largest weight of every head for the query that chose
        the token, and the surprise -log p of the token. Caches may be dynamic or static; sequences
        of a batch take turns, each until its end. Beam search is refused.
        """
        self.require()
        if self.recorder.generation is None:
            raise NothingRecorded("generate() of a transformers model did not run while watched")
        return self.recorder.generation.tokens()

    def _repr_html_(self) -> str:
        title = f"Watch of {type(self.model).__name__}"
        if not self.places():
            return card(title, notes=["running" if self.running else "nothing was recorded"])
        return rows.html(self.heads(), title=title)

    def to_json(self) -> str:
        """heads() as JSON text, which attentropy.models.record.rows.from_json reads."""
        return rows.to_json(self.heads())

    def table(self) -> "Table":
        """heads() as a rich table."""
        return rows.table(self.heads())

    def frame(self) -> Any:
        """heads() as a pandas frame."""
        return rows.frame(self.heads())

    def clear(self) -> None:
        """Forget what was recorded, and go on."""
        for owner in self.recorder.owners:
            for slot in owner.slots.values():
                slot.clear()
        self._elsewhere = []
        if self.recorder.generation is not None:
            self.recorder.generation.clear()

    def of_all_heads(self: W) -> W:
        """Record the heads of all processes on each, where processes share them.

        Every process then makes the same calls while it is watched, and waits for the others in
        each: `reduce` costs less, and looks for twins within a process.
        """
        self.recorder.together = self._sharing
        return self

    @cached_property
    def _sharing(self) -> SharedHeads | None:
        return shared_heads(self.model)

    @property
    def running(self) -> bool:
        """True between start() and stop()."""
        return self._undo is not None

    def reduce(self, group: Any = None) -> None:
        """Add up over the processes of a torch.distributed group; every rank gets the whole.

        The heads of a transformers model with a tp_plan, which processes share, stand side by side
        with the numbers that they have in the whole model; twins are looked for within a process.
        Layers that only other processes hold, as stages of a pipeline do, get their rows too: each
        layer needs the name that it has in the whole model.

        Takes one small collective; processes may have recorded nothing, or other places. What was
        added up once is added up again by a second call, unless `clear` is called between. See
        attentropy.models.record.reduce for samples that do not wait.

        Args:
            group: a ProcessGroup or a DeviceMesh of one dimension; None for the default group.
        """
        if self._shared is None or self._shared[0] is not group:
            beside = reduce.tensor_parallel_of(self.model)
            shared = reduce.Shared(self.recorder.owners, group=group, tensor_parallel=beside)
            self._shared = group, shared
        sample = self._shared[1].start()
        whole = sample.slots()
        reduce.fill(self.recorder.owners, whole)
        self._order = sample.order
        self._elsewhere = reduce.elsewhere(self.recorder, whole)

    def _own(self, undo: ExitStack, named: list[tuple[str, nn.Module]]) -> None:
        """Attach a record to every module that may call attention; count the model's passes."""
        self._named = named
        known = {owner.name: owner for owner in self.recorder.owners}
        attached, untrack = tracking.track([*(module for _, module in named), self.model])
        undo.callback(untrack)
        owners = [known.get(name) or self._new_owner(name, module) for name, module in named]
        undo.callback(tracking.watch(attached[:-1], owners))
        undo.callback(registry.replace(attached[-1], "recorder", self.recorder))
        for owner in owners:
            owner.calls.clear()

    def _new_owner(self, name: str, module: nn.Module) -> Owner:
        cross = candidates.looks_like_cross(name, module)
        kind: Any = type(module)
        names, is_model = names_of(kind), candidates.is_transformers(module)
        padding = tuple(one for one in TELLING if is_model or one in names)
        owner = Owner(
            name,
            self.recorder,
            kind="cross" if cross else "self",
            names=names,
            is_model=is_model,
            is_cut=self._sharing is not None and self._sharing.cuts(module),
            padding=padding,
            known=repeated.known_of(module),
        )
        attends = candidates.looks_like_attention(name, module)
        heads = candidates.heads_of(module) if attends else None
        if heads is not None:
            # allocated before anything is compiled
            device = device_of(module)
            away = device.type == "meta"  # its weights come when it runs
            device = device_of(self.model) if away else device
            owner.slot_of(owner.place("forward", heads), device=device)
        self.recorder.owners.append(owner)
        return owner

    def _take_over(self, undo: ExitStack, structure: candidates.Structure) -> None:
        if any(owner.is_model for owner in self.recorder.owners):
            undo.callback(huggingface.hold())
            undo.callback(huggingface.hold_generate())
        undo.callback(compute.hold_recording())
        for hold in (sdpa.hold, softmax.hold, early.hold_kernels):
            undo.callback(hold(structure.kinds))
        self.recorder.counts = not structure.is_compiled

    def require(self) -> None:
        """Raise NothingRecorded, with the reason, unless something was recorded."""
        if not self.places():
            raise NothingRecorded(_why(self.model, self.recorder))

    def _note_slips(self, named: Iterable[tuple[str, nn.Module]]) -> None:
        """Note modules that ran and that a census has seen attend in a way that is not recorded."""
        ran = {owner.name for owner in self.recorder.owners if owner.ran}
        for name, module in named:
            how = slip_of(module)
            if how is not None and name in ran:
                self.recorder.missed.setdefault(name, how)

    def _tell_missed(self) -> None:
        """Warn once of modules that attended unseen, where others were recorded."""
        missed = {n: how for n, how in self.recorder.missed.items() if n not in self._told}
        if missed and self.places():
            self._told.update(missed)
            text = f"attentropy: {listed(missed)}; rows of other modules are complete"
            warnings.warn(text, RuntimeWarning, stacklevel=3)


def _why(model: nn.Module, recorder: Recorder) -> str:
    name = type(model).__name__
    if recorder.missed:
        return listed(recorder.missed)
    # a forward pass that is not counted ran in a graph
    if any(owner.ran and not owner.name for owner in recorder.owners) and not recorder.forwards:
        return _hidden_by_compiling(model)
    if not recorder.forwards:
        return (
            f"nothing was recorded: no forward pass of {name} ran while it was watched; "
            "call the model itself inside the with block"
        )
    if not recorder.counts:
        return _hidden_by_compiling(model)
    return (
        f"nothing was recorded: {name} ran, but made no call of transformers' attention "
        "interface, of F.scaled_dot_product_attention or of softmax in a module that was watched. "
        "It may have no attention (a state-space model), use a kernel of its own (flash_attn, "
        "flex_attention), or have bound the function early (from torch.nn.functional import "
        "scaled_dot_product_attention). Call F.scaled_dot_product_attention or "
        "attentropy.attend in its attention module"
    )


def _hidden_by_compiling(model: nn.Module) -> str:
    inner = getattr(model, "_orig_mod", model)
    where = "" if inner is model else ", which is its _orig_mod"
    return (
        f"nothing was recorded: {type(inner).__name__} is compiled, and no attention was seen in "
        "its graph. In a graph a watch sees F.scaled_dot_product_attention, torch.softmax, "
        "F.softmax and attentropy.attend; it does not see x.softmax(), the method of a tensor, nor "
        f"other kernels. Watch and call the model that is not compiled{where}, or call "
        "torch.softmax in its attention module"
    )


def _check(model: nn.Module, every: int, keep: str, sample: int | None, verify: str) -> None:
    if not isinstance(model, nn.Module):
        raise ArgumentTypeError("model", "a torch.nn.Module", type(model).__name__)
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:
        raise ArgumentError("every", "an integer >= 1", repr(every))
    if keep not in ("mean", "rows"):
        raise ArgumentError("keep", '"mean" or "rows"', repr(keep))
    if verify not in MODES:
        raise ArgumentError("verify", '"first", "always" or "never"', repr(verify))
    if sample is not None and (not isinstance(sample, int) or sample < 1):
        raise ArgumentError("sample", "an integer >= 1, or None", repr(sample))
