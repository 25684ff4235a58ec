"""Which module is running? A stack kept by forward hooks on modules that may own attention.

Each thread has its own.
"""

import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn
from torch.utils.hooks import RemovableHandle

_WRAPPERS = re.compile(
    r"(^|\.)(_orig_mod|module|_fsdp_wrapped_module|_checkpoint_wrapped_module)\b"
)
_CROSS = re.compile(r"cross|enc_?dec|encoder_attn|encoder_attention", re.IGNORECASE)
_ATTENTION = re.compile(r"attn|attention", re.IGNORECASE)


class _Thread(threading.local):
    def __init__(self) -> None:
        self.running: list[nn.Module] = []
        self.on = False
        self.passing = False


Working = _Thread()
"""Of this thread: `on` while attentropy itself computes, for a softmax of its own is none of the
model; `passing` while calls of scaled_dot_product_attention go on to torch.
"""


def current() -> nn.Module | None:
    """The innermost module with hooks that is running."""
    return Working.running[-1] if Working.running else None


def candidates(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Names and modules that may call attention themselves: all but torch's own leaves."""
    for name, module in model.named_modules():
        if hasattr(module, "_orig_mod"):  # torch.compile's wrapper; what it wraps follows
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
    """By its class or the last part of its name."""
    return bool(_ATTENTION.search(f"{type(module).__name__} {name.rpartition('.')[2]}"))


def looks_like_cross(name: str, module: nn.Module) -> bool:
    """Cross-attention, by what transformers calls it."""
    if getattr(module, "is_cross_attention", False) is True:
        return True
    return bool(_CROSS.search(f"{type(module).__name__} {name.rpartition('.')[2]}"))


def track(
    module: nn.Module, *, entered: Callable[[nn.Module, Any, Any], None] | None = None
) -> list[RemovableHandle]:
    """Keep `module` on the stack while it runs, and tell `entered` its arguments."""
    handles = [
        module.register_forward_pre_hook(_enter),
        module.register_forward_hook(_leave, always_call=True),
    ]
    if entered is not None:
        handles.append(module.register_forward_pre_hook(entered, with_kwargs=True))
    return handles


# at the level of the module, so that a model with these hooks can be pickled
def _enter(module: nn.Module, args: Any) -> None:
    Working.running.append(module)


def _leave(module: nn.Module, args: Any, output: Any) -> None:
    Working.running.pop()
