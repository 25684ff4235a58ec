"""Which module does a recomputation in the backward pass belong to?

Activation checkpointing of a whole module calls the module again. Checkpointing of a function
inside a module's forward does not, and its attention would be recomputed as if the module were not
steered: so the module is searched for among the arguments of the running functions.
"""

import sys
from types import FrameType

from torch import nn

from attentropy.core.errors import UnsupportedError
from attentropy.models.intercept import tracking

BACKWARD = "_engine_run_backward"  # what torch calls it; who asks for gradients is beyond it


def current() -> nn.Module | None:
    """The innermost running module; in a recomputation that shows none, the one it belongs to."""
    module = tracking.current()
    return module if module is not None or not tracking.in_backward() else _recomputing()


def _recomputing() -> nn.Module:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != BACKWARD:
        module = _module_of(frame)
        if module is not None:
            return module
        frame = frame.f_back
    raise UnsupportedError(
        "attention is recomputed in the backward pass, and nothing says for which module; while a "
        "model is steered, checkpoint a module, or a function that has it as argument"
    )


def _module_of(frame: FrameType) -> nn.Module | None:
    """A module among what a function was called with, its first argument or its closure."""
    code = frame.f_code
    for name in (*code.co_varnames[: min(1, code.co_argcount)], *code.co_freevars):
        value = frame.f_locals.get(name)
        if isinstance(value, nn.Module):
            return value
    return None
