"""A head's entropy at other lengths, predicted: as it is, and under each scale rule.

The head's effective spread x is the one for which Gaussian scores have, on average, the entropy
that was measured at the trained length. A rule that multiplies the logits by f(n) predicts the
expected entropy of spread x f(n) / f(reference) at n keys; f is constant for the model as it is.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from attentropy.models.record.profile import Profile
from attentropy.scans.judging import words
from attentropy.scans.schema import Scan

SPREADS = np.concatenate([np.linspace(0.0, 4.0, 17), np.geomspace(4.5, 60.0, 10)])
RULES = ("theory, 1/√d", "LogLengthFrom", "HoldEntropy", "LogLength(κ=1)")
METHODS = (
    (
        "Slope",
        "dH / d log n",
        "Least squares of a head's mean entropy on log n, n the length of the text; on the "
        "visible keys where a window limits them.",
    ),
    (
        "Uniform",
        "H = log n",
        "The largest possible entropy; n is the geometric mean of the visible keys.",
    ),
    (
        "Theory",
        "E H(n, x)",
        "Exact mean entropy of n Gaussian scores of spread x; about log n − x²/2 for x² < 2 log n.",
    ),
    (
        "Effective spread",
        "x: E H(n₀, x) = H measured",
        "Solved for each head at the reference length n₀.",
    ),
    ("Random scores", "log n − ½", "The same for spread 1, as at initialisation."),
    (
        "LogLengthFrom(n₀)",
        "scale = max(1, log n / log n₀) / √d",
        "A fixed gap between logits gains weight as a power of n.",
    ),
    (
        "HoldEntropy(n₀, x)",
        "scale = √max(0, 1 + 2 log(n/n₀) / x²) / √d",
        "Keeps log n − x²/2 where it is at n₀.",
    ),
    (
        "LogLength(κ)",
        "scale = κ log n / d",
        "Entropy-invariant scaling, for models trained with it.",
    ),
)


def predict(scan: Scan) -> dict[str, Any] | None:
    """Entropies by rule, `curves[layer][head][rule][length]`; None without a measure.

    `uniform[layer][length]` is the largest possible entropy: the logarithm of the visible keys.
    """
    home = words.home(scan)
    if home is None:
        return None
    at_home = home.table("entropy")
    counts = [[_keys(m.profiles[i]) for m in scan.measures] for i, _ in enumerate(scan.layers)]
    curves = [
        [_head(entropy, _keys(home.profiles[i]), counts[i], layer.head_dim) for entropy in heads]
        for i, (layer, heads) in enumerate(zip(scan.layers, at_home, strict=True))
    ]
    return {
        "reference": home.length,
        "rules": RULES,
        "uniform": [[math.log(count) for count in layer] for layer in counts],
        "curves": curves,
        "methods": METHODS,
    }


def _head(
    measured: float | None, reference: float, counts: list[float], head_dim: int
) -> list[list[float | None]]:
    if measured is None:
        return [[None] * len(counts) for _ in RULES]
    spread = effective_spread(reference, measured)
    return [
        [
            None if factor is None else expected_entropy(n, spread * factor)
            for n, factor in zip(counts, factors, strict=True)
        ]
        for factors in _factors(spread, reference, counts, head_dim)
    ]


def _factors(
    spread: float, reference: float, counts: list[float], head_dim: int
) -> tuple[Sequence[float | None], ...]:
    """How much each of RULES multiplies the logits at each length; None where d is not known."""
    growth = [math.log(n / reference) for n in counts]
    log_reference = math.log(max(reference, 2.0))
    held = [1 + 2 * gain / max(spread, 1e-9) ** 2 for gain in growth]
    return (
        [1.0] * len(counts),
        [max(1.0, math.log(n) / log_reference) for n in counts],
        [math.sqrt(max(0.0, inside)) for inside in held],
        [math.log(n) / math.sqrt(head_dim) if head_dim else None for n in counts],
    )


def effective_spread(n: float, entropy: float) -> float:
    """The spread at which n Gaussian scores have this entropy; at most the largest tabulated.

    Args:
        n: the number of keys.
        entropy: the measured entropy.
    """
    return float(np.interp(entropy, _entropies(round(n, 6))[::-1], SPREADS[::-1]))


def expected_entropy(n: float, spread: float) -> float:
    """The mean entropy of n Gaussian scores, between tabulated spreads by monotone cubics.

    Args:
        n: the number of keys.
        spread: the standard deviation of the scores.
    """
    return float(_curve(round(n, 6))(min(spread, SPREADS[-1])))


@lru_cache(maxsize=256)
def _curve(n: float) -> Any:
    from scipy.interpolate import PchipInterpolator

    return PchipInterpolator(SPREADS, _entropies(n))


@lru_cache(maxsize=256)
def _entropies(n: float) -> np.ndarray:
    from attentropy.theory.gaussian import expected_entropy as exact

    return np.asarray(exact(n, SPREADS), dtype=float)


def _keys(profile: Profile) -> float:
    """The geometric mean of the number of visible keys, that of a typical row."""
    logs = [math.log(max(visible or 1.0, 1.0)) for visible in profile.visible]
    return math.exp(sum(logs) / len(logs))
