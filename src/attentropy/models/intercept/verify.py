"""Does attend() equal the model's own attention? Compared on the first call, and remembered.

The first call that a module makes in each way (operator, type, heads, form of the mask, ...) is
computed twice, by the model's own function and by attend(). If both agree to rounding, attend()
serves such calls from then on. If not, the model's own function does, for good, and the reason is
kept. Functions that round to single precision in a model of doubles do so too, but statistics are
those of attend(). The verdicts of a module live as long as the module.
"""

import threading
import weakref
from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor, nn

MODES = ("first", "always", "never")
# relative to the largest output; functions of models round logits to their own type
TOLERANCE = {
    torch.float64: 1e-9,
    torch.float32: 1e-4,
    torch.float16: 1e-2,
    torch.bfloat16: 5e-2,
}

SINGLE = 1e-6  # of doubles that were rounded to single precision
ROUNDED = "its output equals that of attend() to the rounding of single precision"

Verdict = str | None
"""Why the model's own function serves; "" if attend() does; None if it is not known yet."""

repeated: "weakref.WeakKeyDictionary[nn.Module, dict[Hashable, Any]]"
repeated = weakref.WeakKeyDictionary()
"""By module, what attentropy.models.intercept.repeated knows of its calls."""
_verdicts: "weakref.WeakKeyDictionary[nn.Module, dict[Hashable, str]]" = weakref.WeakKeyDictionary()


class _OwnCount(threading.local):
    """How many verdicts this thread gave."""

    given = 0


_own = _OwnCount()


def verdict(module: nn.Module, way: Hashable) -> Verdict:
    """The verdict on a module's calls of one kind.

    Args:
        module: makes the calls.
        way: what tells its calls apart.
    """
    known = _verdicts.get(module)
    return None if known is None else known.get(way)


def is_known(module: nn.Module) -> bool:
    """Have calls of a module been compared?

    Args:
        module: makes the calls.
    """
    return module in _verdicts


def count(model: nn.Module) -> int:
    """Number of verdicts on all modules of a model.

    Args:
        model: any module.
    """
    return sum(len(_verdicts.get(one, ())) for one in model.modules())


def given() -> int:
    """Number of verdicts made in this thread."""
    return _own.given


def remember(module: nn.Module, way: Hashable, reason: str) -> None:
    """Keep a verdict; a verdict against attend() is final.

    Args:
        module: makes the calls.
        way: what tells its calls apart.
        reason: "" if both agree.
    """
    _own.given += 1
    known = _verdicts.setdefault(module, {})
    known[way] = known.get(way) or reason
    if reason:
        repeated.get(module, {}).clear()  # watches refer to it


def forget(module: nn.Module) -> None:
    """Verify the calls of a module and of all inside it again.

    Args:
        module: any module.
    """
    for one in module.modules():
        _verdicts.pop(one, None)
        repeated.get(one, {}).clear()


@torch.no_grad()
def difference(own: Tensor, ours: Tensor) -> str:
    """Why two outputs differ, in words; "" if they agree to rounding.

    ROUNDED if they are doubles that agree to the rounding of single precision.

    Args:
        own: of the model's own function.
        ours: of attend().
    """
    if own.dtype != ours.dtype:
        return f"its output is of {own.dtype}, and that of attend() of {ours.dtype}"
    if own.shape != ours.shape:
        return (
            f"its output has the shape {list(own.shape)}, and that of attend() {list(ours.shape)}"
        )
    if not own.numel():
        return ""
    wide = torch.promote_types(own.dtype, torch.float32)
    a, b = own.detach().to(wide), ours.detach().to(wide)
    if not torch.equal(a.isfinite(), b.isfinite()):
        return "its output is finite elsewhere than that of attend()"
    a, b = (x.nan_to_num(0.0, 0.0, 0.0) for x in (a, b))
    size, apart = float(a.abs().amax()), float((a - b).abs().amax())
    if apart <= TOLERANCE.get(own.dtype, 1e-4) * size:
        return ""
    if own.dtype == torch.float64 and apart <= SINGLE * size:
        return ROUNDED
    return (
        f"its output differs from that of attend() by {apart / max(size, 1e-300):.2g} of its size"
    )


def form(mask: Any) -> Hashable:
    """What tells masks apart: none, their type, and which dimensions are 1.

    Args:
        mask: of a call.
    """
    if not isinstance(mask, Tensor):
        return type(mask).__name__
    return mask.dtype, tuple(size == 1 for size in mask.shape)


def sizes(q: Tensor, k: Tensor, v: Tensor) -> Hashable:
    """What tells tensors of a call apart: type, heads, widths, and one query from several.

    Args:
        q: queries [...,Q,D].
        k: keys [...,K,D].
        v: values [...,K,Dv].
    """
    one, square = q.shape[-2] == 1, q.shape[-2] == k.shape[-2]
    heads = (q.shape[-3], k.shape[-3]) if q.dim() > 3 and k.dim() > 3 else ()
    return (
        q.dtype,
        torch.is_autocast_enabled(),
        q.dim(),
        heads,
        q.shape[-1],
        v.shape[-1],
        one,
        square,
    )
