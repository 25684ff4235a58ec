"""Which kernel serves a call: the fastest that can, or the one that was asked for."""

import math
from dataclasses import dataclass
from typing import Unpack

import torch
from torch import Tensor
from torch.autograd import forward_ad

from attentropy.core.call import Call
from attentropy.core.errors import ArgumentError, UnsupportedError
from attentropy.core.resolve import SMALL_MASK, AttendOptions, options_of, resolve
from attentropy.kernels import linear, reference
from attentropy.kernels.contract import Kernel
from attentropy.kernels.fused import kernel as fused
from attentropy.kernels.packing import INPUTS
from attentropy.kernels.tiled import softmax as streaming
from attentropy.kernels.triton import kernel as triton

_IN_ORDER: tuple[Kernel, ...] = (linear, triton, fused, streaming, reference)
KERNELS: dict[str, Kernel] = {kernel.name: kernel for kernel in _IN_ORDER}
"""All kernels by name, in the order in which "auto" asks them on a GPU."""

# off the GPU, Triton is an interpreter: it comes last
_OFF_GPU = (*(kernel for kernel in _IN_ORDER if kernel is not triton), triton)


def choose(call: Call, kernel: str) -> tuple[Call, Kernel]:
    """The kernel for a call, and the call as that kernel takes it.

    Args:
        call: a resolved call.
        kernel: a name of KERNELS, or "auto" for the first that serves the call.

    Raises:
        UnsupportedError: the kernel that was asked for lacks something; it says what.
    """
    given, call = call, _as_taken(call, kernel)
    chosen = _chosen(call, kernel)
    _refuse_transforms(chosen.name, call)
    reason = None if kernel == "auto" else chosen.lacks(call)
    if reason is not None:
        able = [name for name, lack in _lacking(given).items() if lack is None]
        raise UnsupportedError(
            f"kernel={kernel!r} does not support {reason}; kernels that serve this call: {able}"
        )
    return call, chosen


def check_name(kernel: str) -> None:
    """Raise unless it is the name of a kernel, or "auto".

    Args:
        kernel: the argument of the caller.
    """
    if kernel != "auto" and kernel not in KERNELS:
        raise ArgumentError("kernel", f"'auto' or one of {sorted(KERNELS)}", repr(kernel))


def _chosen(call: Call, kernel: str) -> Kernel:
    check_name(kernel)
    if kernel != "auto":
        return KERNELS[kernel]
    asked = _IN_ORDER if call.q.is_cuda else _OFF_GPU
    return next(one for one in asked if one.lacks(call) is None)


def _as_taken(call: Call, kernel: str) -> Call:
    """The call as this kernel takes it: a small predicate becomes a table where that helps."""
    seen = call.seen
    if kernel in ("streaming", "reference"):
        return call
    if seen.predicate is None or math.prod(seen.extent[:4]) > SMALL_MASK:
        return call
    return call._replace(seen=seen.tabled())


def _lacking(call: Call) -> dict[str, str | None]:
    """For every kernel what it lacks for this call; None if it could serve it."""
    return {name: one.lacks(_as_taken(call, name)) for name, one in KERNELS.items()}


def _refuse_transforms(name: str, call: Call) -> None:
    if name == "reference" or torch.compiler.is_compiling():
        return
    # tangents of forward-mode derivatives would be lost without a word
    dual = forward_ad._current_level >= 0 and name != "linear"
    if dual and any(_has_tangent(getattr(call, part)) for part in (*INPUTS, "slopes")):
        raise UnsupportedError(
            f"forward-mode derivatives are not supported by the {name} kernel; "
            "kernel='reference' supports them, in O(n^2) memory"
        )
    if torch._C._are_functorch_transforms_active():
        raise UnsupportedError(
            f"torch.func transforms (vmap, grad, jvp) are not supported by the {name} kernel; "
            "add a batch dimension instead of vmap, or use kernel='reference'"
        )


def _has_tangent(x: Tensor | None) -> bool:
    return x is not None and forward_ad.unpack_dual(x).tangent is not None


def explain(
    q: Tensor, k: Tensor, v: Tensor, *, kernel: str = "auto", **options: Unpack[AttendOptions]
) -> "Explanation":
    """Which kernel attend() would take with these arguments, and why not the others.

    Args:
        q: queries, as in attend().
        k: keys.
        v: values.
        kernel: as in attend().
        options: mask, score, scale, weights, bias, softcap, sink, dropout, stats, as in attend().

    >>> q = torch.ones(1, 1, 4, 8)
    >>> explain(q.double(), q.double(), q.double()).kernel
    'streaming'
    """
    call = resolve(q, k, v, options_of(options))
    return Explanation(_chosen(_as_taken(call, kernel), kernel).name, _lacking(call))


@dataclass(frozen=True)
class Explanation:
    """Which kernel serves a call, and why.

    Attributes:
        kernel: the name of the kernel that serves the call.
        lacking: for every kernel what it lacks for this call; None if it could serve it.
    """

    kernel: str
    lacking: dict[str, str | None]

    def __str__(self) -> str:
        lines = [f"{self.kernel} serves this call."]
        for name, reason in self.lacking.items():
            if name != self.kernel:
                lines.append(
                    f"  {name}: {'could serve it too' if reason is None else 'lacks ' + reason}"
                )
        return "\n".join(lines)
