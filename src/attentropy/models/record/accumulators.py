"""Where the numbers of watched calls add up.

A slot holds the sums of one place in the model: a module, its first, second, ... call in a forward
pass, and whether queries continue a cache ("step") or not ("forward"). Its tensors are allocated
once and added to in place, which torch.compile takes without a graph break.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from attentropy.models.record.measures import ROWS, HeadSums, KeptRows
from attentropy.models.record.model_call import ModelCall
from attentropy.models.record.sampled import SAMPLED


@dataclass(frozen=True)
class Place:
    """Where in a model the numbers of a slot come from.

    Attributes:
        layer: name of the module.
        call: number of the module's call in a forward pass, from 0.
        phase: "forward", or "step" for queries that continue a cache.
        kind: "self" or "cross".
    """

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
        self.kept: list[KeptRows] = []
        self.longest = torch.zeros((), dtype=torch.int64, device=device)
        self.behind = torch.zeros((), dtype=torch.bool, device=device)
        self.head_dim = 0
        self._length = 0
        self._is_causal = False

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

    def describe(self, asked: ModelCall) -> None:
        """Note the sizes of a call, and whether it is causal."""
        causal, keys = asked.mask.is_causal, asked.call.k.shape[2]
        self.head_dim = asked.call.q.shape[3]
        self.is_causal = causal is True
        if torch.compiler.is_compiling():  # a number here would be a graph for every length
            self.longest.copy_(self.longest.clamp(min=keys))
            self.behind.copy_(torch.as_tensor(causal, device=self.behind.device))
        else:
            self.length = keys

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
        self.length = other.length


@dataclass(eq=False)
class Owner:
    """A watched module that calls attention, and its slots.

    Attributes:
        name: of the module in the model.
        recorder: of the watch.
        call: number of the running call of the module in this forward pass; -1 before the first.
        slots: by the number of the call and its phase.
        kind: "self" or "cross".
        entered: told the module and its arguments when its forward starts, where they matter.
        tokens: the padding mask [B,N] that a model of transformers was called with, 0 at padding.
    """

    name: str
    recorder: Any
    call: int = -1
    slots: dict[tuple[int, str], Slot] = field(default_factory=dict)
    kind: str = "self"
    entered: Callable[["Owner", nn.Module, Any, Any], None] | None = None
    tokens: Any = None

    def enter(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Count a call of the module; its calls are told apart within one forward pass.

        Args:
            module: the module.
            args: positional arguments of the call.
            kwargs: keyword arguments of the call.
        """
        self.call = self.call + 1 if self.recorder.inside else 0
        if self.entered is not None:
            self.entered(self, module, args, kwargs)

    def slot(self, phase: str, heads: int, *, device: torch.device) -> Slot:
        """The slot of the running call, made if it is not there.

        Args:
            phase: "forward" or "step".
            heads: number of heads.
            device: where its sums are kept.
        """
        return self.slot_of((max(self.call, 0), phase), heads, device=device)

    def slot_of(self, key: tuple[int, str], heads: int, *, device: torch.device) -> Slot:
        """The slot of a call and phase, made if it is not there.

        Args:
            key: number of the call in a forward pass, and its phase.
            heads: number of heads; a slot of another number is replaced.
            device: where its sums are kept.
        """
        slot = self.slots.get(key)
        if slot is None or slot.heads != heads:
            slot = self.slots[key] = Slot(heads, device=device)
        return slot
