"""Which entropies can bounded scores reach, and which temperature makes a range reachable?

Cosine scores lie within +-1; at temperature tau the logits of a row span at most 2/tau. That sets a
floor under the entropy, which for n keys at tau = 1 is never more than 0.4745 nats below log n: too
high for contrastive learning, which is why its temperature is small.
"""

import math
from typing import NamedTuple

from attentropy.core.errors import ArgumentError


class EntropyRange(NamedTuple):
    """The entropies that a row can have.

    Attributes:
        least: in nats.
        most: log n.
    """

    least: float
    most: float


def entropy_range(n: int, bound: float = 1.0, tau: float = 1.0) -> EntropyRange:
    """The least and the largest entropy of softmax(s / tau) over n scores within +-bound.

    The least has m keys at +bound and the others at -bound, for the best m: with R = 2 bound / tau,
    H = log(m e^R + n - m) - R m e^R / (m e^R + n - m). The most, log n, has equal scores.

    Args:
        n: number of scores.
        bound: of their absolute values; positive.
        tau: the temperature; positive.

    >>> entropy_range(1024, tau=0.07)
    EntropyRange(least=1.18...e-08, most=6.931471805599453)
    """
    _check(n, bound)
    if not 0 < tau < math.inf:
        raise ArgumentError("tau", "positive and finite", tau)
    return EntropyRange(_least(n, 2 * bound / tau), math.log(n))


def _least(n: int, span: float) -> float:
    """The least entropy of n scores of this range; the best m lies beside n x*, x* the limit."""
    if n == 1:
        return 0.0
    if span == 0:
        return math.log(n)
    # x* = (m - 1)/(e^R - 1), m = R/(1 - e^-R), the share at the top as n grows
    excess = span / -math.expm1(-span) - 1
    share = excess * math.exp(-span) / -math.expm1(-span)
    near = min(max(int(n * share), 1), n - 1)
    return min(_two_levels(n, m, span) for m in {near, min(near + 1, n - 1)})


def _two_levels(n: int, top: int, span: float) -> float:
    """The entropy with `top` keys a span above the others, without overflow or cancellation."""
    rest = (n - top) * math.exp(-span) / top
    low = rest / (1 + rest)
    return math.log(top) + math.log1p(rest) + low * span


def tau_for_entropy(n: int, entropy: float, bound: float = 1.0) -> float:
    """The largest temperature at which n scores within +-bound can have this little entropy.

    Any tau below it makes the whole range [entropy, log n] reachable.

    Args:
        n: number of scores.
        entropy: in (0, log n].
        bound: of the absolute values of scores; positive.

    >>> round(tau_for_entropy(1024, 0.5), 4)
    0.2005
    """
    _check(n, bound)
    if not 0 < entropy <= math.log(n):
        raise ArgumentError("entropy", f"in (0, log n] = (0, {math.log(n):.4f}]", entropy)
    if entropy == math.log(n):
        return math.inf
    low, high = 0.0, 1.0
    while _least(n, high) > entropy:
        low, high = high, 2 * high
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if _least(n, middle) > entropy else (low, middle)
    return 2 * bound / high


def _check(n: int, bound: float) -> None:
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise ArgumentError("n", "an integer >= 1", n)
    if not 0 < bound < math.inf:
        raise ArgumentError("bound", "positive and finite", bound)
