"""Arguments in, arrays through, floats out: what every closed form shares."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec

import numpy as np

from attentropy.core.errors import ArgumentError

Array = np.ndarray[Any, np.dtype[np.float64]]
"""What travels inside; at the border a scalar in gives a float out."""


_Arguments = ParamSpec("_Arguments")


def elementwise(function: Callable[_Arguments, Any]) -> Callable[_Arguments, Any]:
    """Broadcast over array arguments; scalars in give a float out.

    Overflow to inf and underflow to 0 are answers here, so numpy stays silent about them.
    """
    names = [name.rstrip("_") for name in inspect.signature(function).parameters]
    of_arrays: Callable[..., Any] = function

    @functools.wraps(function)
    def call(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> Any:
        with np.errstate(all="ignore"):
            arrays = [floats(name, value) for name, value in zip(names, args, strict=False)]
            rest = args[len(names) :]  # too many, which the function itself will say
            named = {name: floats(name, value) for name, value in kwargs.items()}
            return plain(of_arrays(*arrays, *rest, **named))

    return call


def floats(name: str, value: Any) -> Array:
    """An array of floats; text, complex numbers and rows of unequal length are refused.

    None and NaN pass here, as NaN: the domain of each function refuses them.
    """
    try:
        return np.asarray(value, float)
    except (TypeError, ValueError):
        raise ArgumentError(name, "real numbers, in rows of equal length", value) from None


def number(name: str, value: Any) -> float:
    """One real number, where arrays make no sense. None and NaN pass, as NaN."""
    array = floats(name, value)
    if array.ndim:
        raise ArgumentError(name, "one real number", value)
    return float(array)


def plain(value: Any) -> Any:
    """A 0-d array becomes a float; tuples are opened; the rest stays."""
    if isinstance(value, tuple):
        return tuple(plain(part) for part in value)
    return value.item() if isinstance(value, np.ndarray | np.generic) and value.ndim == 0 else value


def require(name: str, rule: str, value: Any, ok: Any) -> None:
    """Raise ArgumentError unless `ok` everywhere; NaN is never ok because it compares false."""
    good = np.asarray(ok)
    if good.all():
        return
    values = np.asarray(value)
    shown = values[~good].flat[0] if values.shape == good.shape and values.ndim else value
    raise ArgumentError(name, rule, shown if np.ndim(shown) else np.asarray(shown).item())


def at_least(name: str, value: Any, bound: float, *, finite: bool = True) -> None:
    """`value` >= bound, and below infinity unless `finite` is off."""
    rule = f"{'finite and ' if finite else ''}>= {bound:g}"
    require(name, rule, value, (value >= bound) & (np.isfinite(value) | (not finite)))


def above(name: str, value: Any, bound: float) -> None:
    """`value` > bound and finite."""
    require(name, f"finite and > {bound:g}", value, (value > bound) & np.isfinite(value))


def within(name: str, value: Any, low: float, high: float) -> None:
    """Low <= value <= high."""
    require(name, f"in [{low:g}, {high:g}]", value, (value >= low) & (value <= high))


def finite(name: str, value: Any) -> None:
    """Neither NaN nor infinite."""
    require(name, "finite", value, np.isfinite(value))


def scores_array(scores: Any, name: str = "scores") -> Array:
    """Scores as floats, keys on the last axis; -inf hides a key, NaN and +inf are refused."""
    array = floats(name, scores)
    if array.ndim == 0 or array.shape[-1] == 0:
        raise ArgumentError(name, "a vector (or array of rows) with at least one key", scores)
    require(name, "below +inf and not NaN (-inf hides a key)", array, array < np.inf)
    return array


def probabilities_array(p: Any, name: str = "p") -> Array:
    """Weights that are >= 0 and sum to 1 along the last axis."""
    array = floats(name, p)
    if array.ndim == 0 or array.shape[-1] == 0:
        raise ArgumentError(name, "a vector of probabilities", p)
    require(name, ">= 0", array, array >= 0)
    total = array.sum(-1)
    require(name, "probabilities that sum to 1", total, np.abs(total - 1) < 1e-8)
    return array
