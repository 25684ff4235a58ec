"""Scratch memory of tiles, kept by each thread: fresh pages cost as much as a pass over them."""

import mmap
import threading

import torch
from torch import Tensor

_OF_THREAD = threading.local()
_PAGE = 1 << 21


def scratch(name: str, size: int, *, like: Tensor) -> Tensor:
    """Memory of this thread under a name, for `size` numbers of the dtype of `like`.

    Tensors of other kinds than plain CPU ones have allocators, or rules, of their own.
    """
    if type(like) is not Tensor or like.device.type != "cpu":
        return like.new_empty(size)
    held: dict[str, Tensor] = _OF_THREAD.__dict__
    key = f"{name} {like.dtype}"
    found = held.get(key)
    if found is None or len(found) < size:
        with torch.inference_mode(mode=False):
            found = held[key] = _memory(size, dtype=like.dtype)
    return found[:size]


def _memory(size: int, *, dtype: torch.dtype) -> Tensor:
    """Fresh memory of a CPU, of huge pages where Linux gives them: some 2 % of a call's time."""
    length = size * dtype.itemsize
    if length < _PAGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(size, dtype=dtype, device="cpu")
    try:
        region = mmap.mmap(-1, length + _PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        region.madvise(mmap.MADV_HUGEPAGE)
    except OSError:
        return torch.empty(size, dtype=dtype, device="cpu")
    whole = torch.frombuffer(region, dtype=torch.uint8)
    start = -whole.data_ptr() % _PAGE
    return whole[start : start + length].view(dtype)
