"""The cases of the default table, and the ratios to sdpa that the fused kernel must not exceed."""

import torch

from attentropy.lab.bench.contenders import BenchCase

SIZES = ((4, 12, 512, 64), (1, 8, 2048, 64), (1, 32, 2048, 128), (1, 8, 8192, 64))
KINDS = ((torch.float32, False), (torch.float32, True), (torch.bfloat16, False))
WINDOW = BenchCase(1, 8, 8192, 64, causal=True, window=256)
DECODE = BenchCase(1, 8, 4096, 64, queries=1)
SHORT = BenchCase(4, 12, 64, 64)

# full and causal, for each size and kind
_BARS = (
    ((0.80, 0.50), (0.78, 0.50), (0.50, 0.32)),
    ((0.80, 0.68), (0.78, 0.65), (0.48, 0.45)),
    ((0.85, 0.74), (0.84, 0.70), (0.48, 0.42)),
    ((0.82, 0.77), (0.80, 0.74), (0.46, 0.42)),
)
BARS = {WINDOW: 0.10, DECODE: 1.0, SHORT: 1.1} | {
    BenchCase(*size, dtype, causal, backward): _BARS[i][j][causal]
    for i, size in enumerate(SIZES)
    for j, (dtype, backward) in enumerate(KINDS)
    for causal in (False, True)
}


def cases() -> list[BenchCase]:
    """Every size full and causal, in every kind; then a window, one query and a short sequence."""
    return [case for case in BARS if case.window == case.queries == 0 and case != SHORT] + [
        WINDOW,
        DECODE,
        SHORT,
    ]


def quick_cases() -> list[BenchCase]:
    """One small shape, in every kind."""
    return [
        BenchCase(1, 4, 512, 64, dtype, causal, backward)
        for dtype, backward in KINDS
        for causal in (False, True)
    ]


def on_cuda(cases: list[BenchCase]) -> list[BenchCase]:
    """The same shapes for a GPU: in bfloat16, which flash and cuDNN need, each once.

    Args:
        cases: cases of a CPU.
    """
    moved = (case._replace(dtype=torch.bfloat16, device="cuda") for case in cases)
    return list(dict.fromkeys(moved))
