"""Operations and bytes of attention variants, by counting."""

from typing import NamedTuple

from attentropy.core.errors import ArgumentError
from attentropy.theory._arrays import at_least, number

VARIANTS = ("dense", "flash", "causal", "window", "linear")


class Cost(NamedTuple):
    """Floating-point operations (a multiply-add counts two), weights kept, and bytes kept."""

    projections: float
    mixing: float
    kept: float
    kept_bytes: float

    @property
    def total(self) -> float:
        """All operations."""
        return self.projections + self.mixing


def attention_cost(
    variant: str,
    *,
    n: int,
    d_model: int,
    heads: int = 1,
    window: int | None = None,
    itemsize: int = 4,
) -> Cost:
    """Cost of one self-attention layer on n tokens.

    Projections 8 n d^2 (q, k, v, output). Mixing: dense and flash 4 n^2 d, causal half of it,
    window 4 n w d, linear 4 n d^2/h. Kept between the passes: n^2 h weights for dense (and causal)
    attention, 2 n h statistics when computed in blocks, d^2/h state for linear attention.

    Args:
        variant: "dense", "causal", "flash", "window" or "linear".
        n: number of tokens.
        d_model: width of the model.
        heads: h, number of heads.
        window: w, keys that a token sees; for the variant "window" only.
        itemsize: bytes of a number.

    >>> attention_cost("flash", n=4096, d_model=512, heads=8).mixing
    34359738368.0
    """
    for name, value in (("n", n), ("d_model", d_model), ("heads", heads), ("itemsize", itemsize)):
        at_least(name, number(name, value), 1)
    if variant not in VARIANTS:
        raise ArgumentError("variant", f"one of {', '.join(VARIANTS)}", variant)
    if (variant == "window") != (window is not None) or (
        window is not None and not number("window", window) >= 1
    ):
        raise ArgumentError("window", "at least 1 for the window variant, else absent", window)
    full = 4.0 * n * n * d_model
    width = min(window or n, n)
    mixing = {
        "dense": full,
        "flash": full,
        "causal": full * (n + 1) / (2 * n),
        "window": 4.0 * d_model * (n * width - width * (width - 1) / 2),
        "linear": 4.0 * n * d_model * d_model / heads,
    }[variant]
    kept = {"dense": n * n * heads, "causal": n * n * heads, "linear": d_model**2 / heads}
    elements = float(kept.get(variant, 2 * n * heads))
    return Cost(8.0 * n * d_model**2, mixing, elements, elements * itemsize)


def crossover_length(d_model: int) -> float:
    """2 d: below this length the projections cost more than the mixing of dense attention.

    Args:
        d_model: width of the model.
    """
    at_least("d_model", number("d_model", d_model), 1)
    return 2.0 * d_model
