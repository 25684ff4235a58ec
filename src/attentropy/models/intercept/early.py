"""Names that a model's own code bound early: from torch.nn.functional import softmax.

A patch of torch does not reach them. They are found among the globals of the Python modules that a
model's classes come from, and of those beside them in the same package, and replaced there.
Attention kernels that code calls directly are neither recorded nor changed, but named.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache, lru_cache
from types import ModuleType
from typing import Any

from torch import nn

from attentropy.models.intercept import registry, tracking
from attentropy.models.intercept.compute import pass_by
from attentropy.models.intercept.tracking import STATE

Taken = Mapping[int, tuple[Callable[..., Any], Callable[..., Any]]]
"""By the id of a function: the function, and what takes its place."""

LARGE = ("torch", "transformers", "attentropy")  # packages of which only the named modules are read
KERNELS = {
    "torch.nn.attention.flex_attention": ("flex_attention",),
    "flash_attn": ("flash_attn_func", "flash_attn_varlen_func", "flash_attn_with_kvcache"),
    "flash_attn_interface": ("flash_attn_func", "flash_attn_varlen_func"),
    "xformers.ops": ("memory_efficient_attention",),
    "sageattention": ("sageattn",),
}


def hold(kinds: frozenset[type[nn.Module]], taken: Taken) -> registry.Undo:
    """Replace functions where a model's code has bound them, until the undo is called.

    Args:
        kinds: the classes of its modules.
        taken: the functions and what takes their place.
    """
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


def hold_kernels(kinds: frozenset[type[nn.Module]] = frozenset()) -> registry.Undo:
    """Name modules that call kernels directly, until the function returned is called.

    Args:
        kinds: names that the code of these classes has bound to kernels are listened to as well.
    """
    taken = {id(f): (f, _named(f)) for _, _, f in _present()}
    places = tuple(_present())
    held = registry.hold(("kernels", tuple(f for *_, f in places)), lambda: _apply(places))
    return registry.together(held, hold(kinds, taken) if taken else registry.together())


def _apply(places: Any) -> registry.Undo:
    return registry.together(
        *(registry.replace(holder, name, _named(f)) for holder, name, f in places)
    )


def _present() -> Iterator[tuple[Any, str, Callable[..., Any]]]:
    """Attention kernels that are imported."""
    for home, names in KERNELS.items():
        holder = sys.modules.get(home)
        for name in names:
            function = getattr(holder, name, None)
            if function is not None:
                yield holder, name, getattr(function, "attentropy_names", function)


@cache
def _named(function: Callable[..., Any]) -> Callable[..., Any]:
    def named(*args: Any, **kwargs: Any) -> Any:
        module = None if STATE.computing else tracking.current()
        if module is not None:
            pass_by(module, function.__name__)
        return function(*args, **kwargs)

    named.attentropy_names = function  # type: ignore[attr-defined]
    return named
