"""Where the numbers of watched calls are added up.

A slot holds the sums of one place in the model: a module, its first, second, ... attention call in
a forward pass, whether queries continue a cache ("step") or not ("forward"), where keys come from,
the operator and the number of heads. Calls that differ in any of these are kept apart. Tensors
of a slot are allocated once and added to in place, which torch.compile takes without a graph break.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from attentropy.models.record.measures import ROWS, HeadSums, KeptRows
from attentropy.models.record.model_call import ModelCall
from attentropy.models.record.sampled import SAMPLED


class Place(NamedTuple):
    """Where in a model the numbers of a slot come from.

    Attributes:
        layer: name of the module.
        call: number of the module's attention call in a forward pass, from 0.
        phase: "forward", or "step" for queries that continue a cache.
        kind: "self" or "cross"; the calls of a slot show whether it is a window.
        operator: "attend", or "softmax" of attention that is computed by hand.
        heads: number of heads.
    """

    layer: str
    call: int
    phase: str
    kind: str
    operator: str
    heads: int


class CallSizes(NamedTuple):
    """What a slot stores about a call besides sums: width, number of keys, causality, a window."""

    head_dim: int
    keys: int
    causal: bool | torch.Tensor
    window: bool

    @classmethod
    def of(cls, asked: ModelCall, *, window: bool = False) -> "CallSizes":
        """Those of a call.

        Args:
            asked: the call.
            window: it attends within a part of the sequence.
        """
        mask = asked.mask
        window = not mask.cross and (window or mask.slides)
        return cls(asked.call.q.shape[3], asked.call.k.shape[2], mask.is_causal, window)


class Slot:
    """Sums over the calls of one place, `rows`, `sampled` and `overlap`; `top` is a maximum."""

    def __init__(self, heads: int, *, device: torch.device) -> None:
        size = len(ROWS) + len(SAMPLED) + heads
        self.sums = torch.zeros(size, heads, dtype=torch.float64, device=device)
        self.top = torch.full((heads,), -torch.inf, dtype=torch.float64, device=device)
        self.kept: list[KeptRows] = []
        self.longest = torch.zeros((), dtype=torch.int64, device=device)
        self.behind = torch.zeros((), dtype=torch.bool, device=device)
        self.head_dim = 0
        self.is_window = False
        self._length = 0
        self._is_causal = False

    @property
    def rows(self) -> torch.Tensor:
        """Sums of ROWS, [N,H]."""
        return self.sums[: len(ROWS)]

    @property
    def sampled(self) -> torch.Tensor:
        """Sums of SAMPLED, [N,H]."""
        return self.sums[len(ROWS) : len(ROWS) + len(SAMPLED)]

    @property
    def overlap(self) -> torch.Tensor:
        """Inner products of the weights of heads, [H,H]."""
        return self.sums[len(ROWS) + len(SAMPLED) :]

    @property
    def heads(self) -> int:
        """Number of heads."""
        return len(self.top)

    @property
    def length(self) -> int:
        """The largest number of keys of a call."""
        return max(self._length, int(self.longest))

    @length.setter
    def length(self, keys: int) -> None:
        self._length = max(self._length, keys)

    @property
    def is_causal(self) -> bool:
        """True if no query of the last call saw a key after its own."""
        return self._is_causal or bool(self.behind)

    @is_causal.setter
    def is_causal(self, causal: bool) -> None:
        self._is_causal = causal

    def add(self, sums: HeadSums) -> None:
        """Add the sums of one call, in place."""
        self.sums.add_(sums.sums)
        self.top.copy_(torch.maximum(self.top, sums.top))

    def describe(self, call: CallSizes) -> None:
        """Note the sizes of a call, and whether it is causal."""
        self.head_dim, self.is_window = call.head_dim, call.window
        self._is_causal = call.causal is True
        if torch.compiler.is_compiling():  # a number here would be a graph for every length
            self.longest.copy_(self.longest.clamp(min=call.keys))
            self.behind.copy_(torch.as_tensor(call.causal, device=self.behind.device))
        elif call.keys > self._length:
            self._length = call.keys

    def clear(self) -> None:
        """Reset all numbers, in place."""
        self.sums.zero_()
        self.top.fill_(-torch.inf)
        self.kept.clear()
        self.longest.zero_()
        self.behind.zero_()
        self._length = 0

    def merge(self, other: "Slot") -> None:
        """Add the numbers of another slot, in place."""
        device = self.top.device
        self.add(HeadSums(other.sums.to(device), other.top.to(device)))
        self.head_dim, self.is_causal = other.head_dim, other.is_causal
        self.is_window = other.is_window
        self.length = other.length


# what an owner notes of a forward pass, and how it begins
_OF_A_PASS: dict[str, Callable[[], Any]] = {
    "calls": dict,
    "softmaxes": int,
    "given": lambda: ((), {}),
    "real": dict,
    "slots": dict,
    "served": dict,  # refers to slots
}


@dataclass(eq=False)
class Owner:
    """A watched module that may call attention, and its slots.

    Attributes:
        name: of the module in the model.
        recorder: of the watch.
        kind: "self" or "cross", judged by its name; arguments of a call can correct it.
        names: of the arguments that the module takes, with their places.
        is_model: it is a transformers model.
        is_cut: processes share its heads.
        padding: names of its arguments that can show which tokens are padding.
        ran: its forward was called.
        calls: number of attention calls so far in this forward pass, by operator.
        softmaxes: number of softmax calls so far in the running call of the module.
        known: what attentropy.models.intercept.repeated knows of its calls, by kind.
        served: how the last call of each kind was served there.
        given: arguments of the running call of the module.
        real: queries that are not padding, according to these arguments; by sizes of a call.
        slots: by place.
    """

    name: str
    recorder: Any
    kind: str = "self"
    names: Mapping[str, int] = field(default_factory=dict)
    is_model: bool = False
    is_cut: bool = False
    padding: tuple[str, ...] = ()
    ran: bool = False
    calls: dict[str, int] = field(default_factory=dict)
    softmaxes: int = 0
    known: dict[Any, Any] = field(default_factory=dict)
    served: dict[Any, Any] = field(default_factory=dict)
    given: tuple[Any, Any] = ((), {})
    real: dict[Any, Any] = field(default_factory=dict)
    slots: dict[Place, Slot] = field(default_factory=dict)

    def enter(self, args: Any, kwargs: Any) -> None:
        """Record that a call of the module starts.

        Args:
            args: positional arguments of the call.
            kwargs: keyword arguments of the call.
        """
        self.ran, self.softmaxes, self.given = True, 0, (args, kwargs)
        if self.real:
            self.real = {}

    def leave(self) -> None:
        """Record that the call of the module has ended."""
        self.given = ((), {})
        if self.real:
            self.real = {}

    def notes(self) -> dict[str, Any]:
        """What is noted of the forward pass that is running."""
        return {name: getattr(self, name) for name in _OF_A_PASS}

    def go_on(self, notes: dict[str, Any]) -> None:
        """Continue the notes of another forward pass.

        Args:
            notes: what `notes` gave when that pass was left; empty for a new one.
        """
        for name, new in _OF_A_PASS.items():
            setattr(self, name, notes[name] if notes else new())

    def place(self, phase: str, heads: int, *, kind: str = "", operator: str = "attend") -> Place:
        """The place of the next attention call.

        Args:
            phase: "forward" or "step".
            heads: number of heads.
            kind: "self" or "cross"; that of the module if not given.
            operator: "attend" or "softmax".
        """
        call = self.calls.get(operator, 0)
        return Place(self.name, call, phase, kind or self.kind, operator, heads)

    def counted(self, place: Place, *, inside: bool) -> Place:
        """The place with the number of the call, which is counted within a forward pass.

        Args:
            place: where the call belongs.
            inside: the call is part of a forward pass of the whole model.
        """
        if torch.compiler.is_compiling():
            return place
        call = self.count(place.operator) if inside else 0
        return place if place.call == call else place._replace(call=call)

    def count(self, operator: str) -> int:
        """Count an attention call of a forward pass; returns its number.

        Args:
            operator: "attend" or "softmax".
        """
        call = self.calls.get(operator, 0)
        self.calls[operator] = call + 1
        return call

    def slot_of(self, place: Place, *, device: torch.device) -> Slot:
        """The slot of a place, made if it is not there.

        Args:
            place: the place.
            device: where its sums are kept.
        """
        slot = self.slots.get(place)
        if slot is None:
            slot = self.slots[place] = Slot(place.heads, device=device)
        return slot
