"""How fast can this CPU multiply and add? A loop on registers only, by the fused library."""

from functools import cache

from attentropy.kernels.fused import library
from attentropy.lab.bench.contenders import BenchCase


@cache
def fma_peak() -> float | None:
    """Float32 operations per second of one thread; None without a fused library."""
    return None if library.serving is None else library.serving.peak()


def operations(case: BenchCase) -> float:
    """Multiplications and additions of the matrix products of a case; 5 products backward.

    Args:
        case: shape, precision and mask.
    """
    queries = case.queries or case.length
    pairs = queries * case.length / (2 if case.causal and not case.queries else 1)
    if case.window:
        pairs = queries * case.window
    products = 7 if case.backward else 2
    return 2.0 * products * case.batch * case.heads * pairs * case.width
