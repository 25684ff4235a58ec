"""Tells a call that is recorded from one that is run."""

import torch
from torch import Tensor

_PLAIN = Tensor.__torch_dispatch__


def traced(*tensors: Tensor | None) -> bool:
    """Whether a kernel must go through its operator, because it may not touch memory itself.

    So it is under torch.compile; under a dispatch mode (FakeTensorMode, make_fx, counters of
    operations), which sees operators only, unless the mode says `lets_kernels_be`; and for tensors
    that are not plain memory (fake ones, DTensor).

    Args:
        tensors: those that the kernel would touch.
    """
    if torch.compiler.is_compiling() or _is_followed():
        return True
    for x in tensors:
        if type(x) is not Tensor and x is not None and type(x).__torch_dispatch__ is not _PLAIN:
            return True
    return False


def _is_followed() -> bool:
    """Is there a dispatch mode that has to see operators?"""
    count = torch._C._len_torch_dispatch_stack()
    modes = (torch._C._get_dispatch_stack_at(i) for i in range(count))
    return bool(count) and not all(getattr(mode, "lets_kernels_be", False) for mode in modes)
