"""A head's entropy at other lengths, predicted: as it is, and under each scale rule.

The head's effective spread sigma is the one for which n Gaussian scores have the entropy that
was measured at the trained length. With the same spread at every length, H(n) = log n - sigma^2/2
while sigma^2 < 2 log n; a rule that multiplies the scores by f(n) predicts with sigma f(n).
"""

import math
from typing import Any

from attentropy.scans import words
from attentropy.scans.schema import Measure, Number, Scan

RULES = (
    ("constant", "theory, scale 1/√d"),
    ("log_length", "LogLengthFrom"),
    ("hold_entropy", "HoldEntropy"),
)

METHODS = (
    ("Slope", "dH / d log n", "Least squares of a head's mean entropy on log n over all lengths."),
    ("Uniform", "H = log n", "The most entropy there is, averaged over the rows of a length."),
    ("Random scores", "H ≈ log n − σ²/2", "Gaussian scores of spread σ, while σ² < 2 log n."),
)


def predict(scan: Scan) -> dict[str, Any] | None:
    """Rules, and [layer][head][rule][length] entropies; None without a measure."""
    home = words.home(scan)
    if home is None:
        return None
    curves = [
        [_head(scan, home, layer, head) for head in range(part.heads)]
        for layer, part in enumerate(scan.layers)
    ]
    return {
        "reference": home.length,
        "rules": [label for _, label in RULES],
        "uniform": [_choices(measure) for measure in scan.measures],
        "curves": curves,
        "methods": METHODS,
    }


def _head(scan: Scan, home: Measure, layer: int, head: int) -> list[list[Number]]:
    measured = home.statistics["entropy"][layer][head]
    if measured is None:
        return [[None] * len(scan.lengths) for _ in RULES]
    reference = _choices(home)
    spread = max(0.0, 2 * (reference - measured))
    lengths = [_choices(measure) for measure in scan.measures]
    return [[_entropy(rule, log_n, reference, spread) for log_n in lengths] for rule, _ in RULES]


def _choices(measure: Measure) -> float:
    """The mean logarithm of the number of visible keys."""
    logs = [math.log(max(visible, 1.0)) for visible in measure.profile.visible]
    return sum(logs) / len(logs)


def _entropy(rule: str, log_n: float, reference: float, variance: float) -> float:
    if rule == "log_length":
        variance *= max(1.0, log_n / reference) ** 2
    if rule == "hold_entropy":
        variance = max(0.0, variance + 2 * (log_n - reference))
    return max(0.0, log_n - variance / 2)
