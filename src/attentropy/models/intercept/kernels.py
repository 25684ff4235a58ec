"""Attention kernels that are called directly: they are neither recorded nor changed, but named."""

import sys
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from torch import nn

from attentropy.models.intercept import early, registry, tracking
from attentropy.models.intercept.compute import pass_by
from attentropy.models.intercept.tracking import STATE

KERNELS = {
    "torch.nn.attention.flex_attention": ("flex_attention",),
    "flash_attn": ("flash_attn_func", "flash_attn_varlen_func", "flash_attn_with_kvcache"),
    "flash_attn_interface": ("flash_attn_func", "flash_attn_varlen_func"),
    "xformers.ops": ("memory_efficient_attention",),
    "sageattention": ("sageattn",),
}


def hold(model: nn.Module | None = None) -> registry.Undo:
    """Name modules that call kernels directly, until the function returned is called.

    Args:
        model: names that its own code has bound to kernels are listened to as well.
    """
    taken = {id(f): (f, _named(f)) for _, _, f in _present()}
    places = tuple(_present())
    held = registry.hold(("kernels", tuple(f for *_, f in places)), lambda: _apply(places))
    return registry.together(held, early.hold(model, taken) if taken else registry.together())


def _apply(places: Any) -> registry.Undo:
    return registry.together(
        *(registry.replace(holder, name, _named(f)) for holder, name, f in places)
    )


def _present() -> Iterator[tuple[Any, str, Callable[..., Any]]]:
    """Kernels that are imported."""
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
