"""The cases of the default table."""

import torch

from attentropy.bench.contenders import Case

SIZES = ((4, 12, 512, 64), (1, 8, 2048, 64), (1, 32, 2048, 128), (1, 8, 8192, 64))
QUICK = ((1, 4, 512, 64),)


def cases(sizes: tuple[tuple[int, int, int, int], ...] = SIZES) -> list[Case]:
    """Full and causal; float32 forward and with backward, bfloat16 forward."""
    kinds = ((torch.float32, False), (torch.float32, True), (torch.bfloat16, False))
    return [
        Case(*size, dtype, causal, backward)
        for size in sizes
        for dtype, backward in kinds
        for causal in (False, True)
    ]
