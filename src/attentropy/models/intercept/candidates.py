"""Which modules of a model may call attention, as their classes and names tell."""

import re
from collections.abc import Iterator

import torch
from torch import nn

_WRAPPERS = re.compile(
    r"(^|\.)(_orig_mod|module|_fsdp_wrapped_module|_checkpoint_wrapped_module)\b"
)
_CROSS = re.compile(r"cross|enc_?dec|encoder_attn|encoder_attention", re.IGNORECASE)
_ATTENTION = re.compile(r"attn|attention", re.IGNORECASE)
_HEADS = ("num_heads", "n_heads", "num_attention_heads", "n_head", "nhead")


def may_attend(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Names and modules that may call attention themselves.

    All but torch's own leaves, compiled wrappers and TorchScript.
    """
    for name, module in model.named_modules():
        if hasattr(module, "_orig_mod") or isinstance(module, torch.jit.ScriptModule):
            continue
        leaf = next(module.children(), None) is None
        if not leaf or not type(module).__module__.startswith("torch.nn.modules"):
            yield plain_name(name), module


def plain_name(name: str) -> str:
    """A module's name without what compile, DDP and FSDP wrap around it.

    >>> plain_name("module._orig_mod.layers.0.attn")
    'layers.0.attn'
    """
    while (shorter := _WRAPPERS.sub("", name, count=1).lstrip(".")) != name:
        name = shorter
    return name


def looks_like_attention(name: str, module: nn.Module) -> bool:
    """Whether a module is attention, by its class or the last part of its name.

    Args:
        name: of the module in its model.
        module: the module.
    """
    return bool(_ATTENTION.search(f"{type(module).__name__} {name.rpartition('.')[2]}"))


def might_attend(name: str, module: nn.Module) -> bool:
    """Whether a module is attention by its name, and no norm or position beside it.

    Args:
        name: of the module in its model.
        module: the module.
    """
    return looks_like_attention(name, module) and next(module.children(), None) is not None


def looks_like_cross(name: str, module: nn.Module) -> bool:
    """Whether a module is cross-attention, by what transformers calls it.

    Args:
        name: of the module in its model.
        module: the module.
    """
    if getattr(module, "is_cross_attention", False) is True:
        return True
    return bool(_CROSS.search(f"{type(module).__name__} {name.rpartition('.')[2]}"))


def heads_of(module: nn.Module) -> int | None:
    """The number of heads that a module says it has."""
    for holder in (module, getattr(module, "config", None)):
        for name in _HEADS:
            value = getattr(holder, name, None)
            if isinstance(value, int):
                return value
    return None


def is_compiled(model: nn.Module) -> bool:
    """Is it, or a part of it, compiled already?"""
    return any(
        hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
        for module in model.modules()
    )


def device_of(model: nn.Module) -> torch.device:
    """The device of the model's first parameter; the CPU if it has none.

    Parameters on the meta device come last: they are elsewhere until a module needs them.

    Args:
        model: the model, or a part of it.
    """
    devices = [p.device for p in model.parameters()] or [torch.device("cpu")]
    return next((device for device in devices if device.type != "meta"), devices[0])
