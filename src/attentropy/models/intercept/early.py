"""Names that a model's own code bound early: from torch.nn.functional import softmax.

A patch of torch does not reach them. They are found among the globals of the Python modules that a
model's classes come from, and of those beside them in the same package, and replaced there.
"""

import sys
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import ModuleType
from typing import Any

from torch import nn

from attentropy.models.intercept import registry

Taken = Mapping[int, tuple[Callable[..., Any], Callable[..., Any]]]
"""By the id of a function: the function, and what takes its place."""

LARGE = ("torch", "transformers", "attentropy")  # packages of which only the named modules are read


def hold(model: nn.Module | None, taken: Taken) -> registry.Undo:
    """Replace functions where a model's code has bound them, until the undo is called.

    Args:
        model: the model; None to replace nothing.
        taken: the functions and what takes their place.
    """
    if model is None:
        return registry.together()
    kinds = frozenset(type(module) for module in model.modules())
    places = _bound(kinds, tuple(function for function, _ in taken.values()))
    held = (_hold(holder, name, taken[key][1]) for holder, name, key in places)
    return registry.together(*held)


def _hold(holder: ModuleType, name: str, function: Callable[..., Any]) -> registry.Undo:
    def apply() -> registry.Undo:
        return registry.replace(holder, name, function)

    return registry.hold(("bound early", holder.__name__, name), apply)


@lru_cache(maxsize=64)
def _bound(
    kinds: frozenset[type[nn.Module]], functions: tuple[Callable[..., Any], ...]
) -> tuple[tuple[ModuleType, str, int], ...]:
    """Where functions are bound, and the id of each."""
    ids = {id(function) for function in functions}
    return tuple(
        (holder, name, id(value))
        for holder in _sources(kinds)
        for name, value in list(vars(holder).items())
        if id(value) in ids
    )


def _sources(kinds: frozenset[type[nn.Module]]) -> list[ModuleType]:
    """Python modules that the code of some classes may be in."""
    names = {base.__module__ for kind in kinds for base in kind.__mro__}
    tops = {name.partition(".")[0] for name in names} - {*LARGE, "builtins"}
    names = {name for name in names if name.partition(".")[0] not in ("torch", "builtins")}
    names |= {name for name in list(sys.modules) if name.partition(".")[0] in tops}
    found = (sys.modules.get(name) for name in sorted(names))
    return [module for module in found if isinstance(module, ModuleType)]
