"""Masks are values. A mask that is called like a function says what to write instead."""

import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from torch import Tensor

from attentropy.core.errors import ArgumentTypeError

INDICES = ("b", "h", "q", "k")


class Named(Protocol):
    """Something with a name for messages; `made` is a string if that is its public name."""

    @property
    def name(self) -> str:
        """For messages."""

    @property
    def made(self) -> Any:
        """How to make it again; its name in `attentropy` if that is a string."""


_Self = TypeVar("_Self", bound=Named)
_Indices = ParamSpec("_Indices")


def takes_indices(
    call: Callable[Concatenate[_Self, _Indices], Tensor],
) -> Callable[Concatenate[_Self, _Indices], Tensor]:
    """Raise if a mask is called without the four indices b, h, q and k.

    Args:
        call: the method that looks up indices.

    Returns:
        The same method, with the same signature; `causal()` raises ArgumentTypeError.
    """

    @functools.wraps(call)
    def checked(mask: _Self, *indices: _Indices.args, **named: _Indices.kwargs) -> Tensor:
        if len(indices) + len(named.keys() & set(INDICES)) != len(INDICES):
            kinds = ", ".join(type(one).__name__ for one in (*indices, *named.values()))
            raise ArgumentTypeError(mask.name, _rule(mask), f"({kinds})")
        return call(mask, *indices, **named)

    return checked


def _rule(mask: Named) -> str:
    written = f"at.{mask.name}" if isinstance(mask.made, str) else mask.name
    return (
        f"passed as it is, mask={written}: it is a mask already, "
        f"and is called with index tensors ({', '.join(INDICES)}) only"
    )
