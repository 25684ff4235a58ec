"""Models made of attentropy itself: calls of attend() by a steered module get other options.

The layers of attentropy.nn make such calls, and so does any module that calls attend() in its
forward. While anything is steered, attend() asks here what to compute.
"""

from torch import Tensor, nn

from attentropy.attention.hooks import hooks
from attentropy.core.resolve import Options, check_tensors
from attentropy.models.intercept import recomputed, running
from attentropy.models.intercept.compute import changes_of
from attentropy.models.intercept.running import Working


class _Steering:
    users = 0


def install() -> None:
    """One more user."""
    _Steering.users += 1
    hooks.change = _changed


def uninstall() -> None:
    """One user less; the last one puts everything back."""
    _Steering.users -= 1
    if not _Steering.users:
        hooks.change = None


def current() -> nn.Module | None:
    """The module whose attention is computed, also in a recomputation while anything is steered."""
    return recomputed.current() if _Steering.users else running.current()


def _changed(q: Tensor, k: Tensor, options: Options) -> tuple[Tensor, Tensor, Options]:
    if Working.on:  # attention of the model itself is changed already
        return q, k, options
    module = current()
    changes = changes_of(module)
    if not changes:
        return q, k, options
    check_tensors(q, k, k)
    assert module is not None
    for change in changes:
        q, k, options = change.of_attend(module, q, k, options)
    return q, k, options
