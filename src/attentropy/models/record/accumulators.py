"""Where the numbers of watched calls add up.

A slot holds the sums of one place in the model: a module, the how-manieth call of it in a forward
pass, and whether queries stand at the end of a cache ("step") or not ("forward"). Its tensors are
allocated once and added to in place, which torch.compile takes without a graph break.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from attentropy.models.record.measures import ROWS, Kept, Sums
from attentropy.models.record.model_call import Asked
from attentropy.models.record.sampled import SAMPLED


@dataclass(frozen=True)
class Place:
    """What is known of a slot besides its numbers."""

    layer: str
    call: int
    phase: str
    kind: str


class Slot:
    """Sums over the calls of one place, `rows`, `sampled` and `overlap`; `top` is a maximum."""

    def __init__(self, heads: int, *, device: torch.device) -> None:
        parts = (len(ROWS), len(SAMPLED), heads)
        self.sums = torch.zeros(sum(parts), heads, dtype=torch.float64, device=device)
        self.rows, self.sampled, self.overlap = self.sums.split(parts)
        self.top = torch.full((heads,), -torch.inf, dtype=torch.float64, device=device)
        self.kept: list[Kept] = []
        self.longest = torch.zeros((), dtype=torch.int64, device=device)
        self.behind = torch.zeros((), dtype=torch.bool, device=device)
        self.head_dim = 0
        self._length = 0
        self._is_causal = False

    @property
    def heads(self) -> int:
        """How many."""
        return len(self.top)

    @property
    def length(self) -> int:
        """The most keys of a call."""
        return max(self._length, int(self.longest))

    @length.setter
    def length(self, keys: int) -> None:
        self._length = max(self._length, keys)

    @property
    def is_causal(self) -> bool:
        """Did no query of the last call see a key after its own?"""
        return self._is_causal or bool(self.behind)

    @is_causal.setter
    def is_causal(self, causal: bool) -> None:
        self._is_causal = causal

    def add(self, sums: Sums) -> None:
        """Count one more call, in place."""
        self.sums.add_(sums.sums)
        self.top.copy_(torch.maximum(self.top, sums.top))

    def describe(self, asked: Asked) -> None:
        """Note the sizes of a call."""
        self.head_dim = asked.head_dim
        self.is_causal = asked.sight.is_causal
        if torch.compiler.is_compiling():  # a number here would be a graph for every length
            self.longest.copy_(self.longest.clamp(min=asked.sizes[3]))
            self.behind.copy_(asked.sight.looks_behind(device=self.behind.device))
        else:
            self.length = asked.sizes[3]

    def clear(self) -> None:
        """Forget everything, in place."""
        self.sums.zero_()
        self.top.fill_(-torch.inf)
        self.kept.clear()
        self.longest.zero_()
        self.behind.zero_()
        self._length = 0

    def merge(self, other: "Slot") -> None:
        """Add what another slot holds, in place."""
        device = self.top.device
        self.add(Sums(other.sums.to(device), other.top.to(device)))
        self.head_dim, self.is_causal = other.head_dim, other.is_causal
        self.length = other.length


@dataclass(eq=False)
class Owner:
    """A watched module that calls attention: its name, where its forward stands, its slots.

    `tokens` [B,N] is the padding mask that a model of transformers was called with, 0 at padding.
    """

    name: str
    recorder: Any
    call: int = -1
    slots: dict[tuple[int, str], Slot] = field(default_factory=dict)
    kind: str = "self"
    tokens: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy of a watched model is not watched."""
        return _nobody, ()

    def slot(self, phase: str, heads: int, *, device: torch.device) -> Slot:
        """The slot of the current call."""
        return self.slot_of((max(self.call, 0), phase), heads, device=device)

    def slot_of(self, key: tuple[int, str], heads: int, *, device: torch.device) -> Slot:
        """The slot of a call and phase, made if it is not there."""
        slot = self.slots.get(key)
        if slot is None or slot.heads != heads:
            slot = self.slots[key] = Slot(heads, device=device)
        return slot


def _nobody() -> None:
    """The owner of what is not watched."""


ATTRIBUTE = "_attentropy_owner"


def owner_of(module: nn.Module | None) -> Owner | None:
    """The owner record of a watched module."""
    return None if module is None else module.__dict__.get(ATTRIBUTE)
