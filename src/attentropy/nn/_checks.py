"""Checks of arguments that several modules share; each returns the value it accepts."""

import math
from numbers import Integral, Real

from attentropy.core.errors import ArgumentError, ArgumentTypeError
from attentropy.core.resolve import check_scale, check_score
from attentropy.core.weights import check_weights


def number(name: str, value: float, *, above: float = -math.inf) -> float:
    """A finite number, greater than `above`."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ArgumentTypeError(name, "a number", repr(value))
    if not math.isfinite(value) or value <= above:
        rule = "finite" if above == -math.inf else f"finite and > {above:g}"
        raise ArgumentError(name, rule, value)
    return float(value)


def count(name: str, value: int, *, least: int = 1) -> int:
    """An integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ArgumentTypeError(name, "an integer", repr(value))
    if value < least:
        raise ArgumentError(name, f">= {least}", value)
    return int(value)


def divides(name: str, value: int, whole_name: str, whole: int) -> int:
    """A positive integer that divides another."""
    value = count(name, value)
    if whole % value:
        raise ArgumentError(name, f"a divisor of {whole_name} = {whole}", value)
    return value


def parts(*, score: object = None, scale: object = None, weights: object = None) -> None:
    """Raise unless attend() accepts the parts of a layer; None is its default."""
    checks = ((check_score, score), (check_scale, scale), (check_weights, weights))
    for check, part in checks:
        if part is not None:
            check(part)
