"""Remedies are tried on the text before anything is said of them."""

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from attentropy.core.errors import AttentropyError
from attentropy.core.masks.kinds import lookback, prefix
from attentropy.core.scales import LogLengthFrom
from attentropy.models.losses.cause import Cause
from attentropy.models.losses.paired import paired, stretches
from attentropy.models.plan import Plan
from attentropy.models.steer.steer import steer
from attentropy.scans.judging.breaks import Beyond
from attentropy.scans.schema import Remedy

SINKS = 4
PLAN = "plan of calibrate"


@dataclass(frozen=True)
class Candidate:
    """A change of `steer` that may help.

    Attributes:
        name: what it is, in a few words.
        call: what applies it.
        options: what `steer` gets.
    """

    name: str
    call: str
    options: dict[str, Any]


def candidates(trained: int, length: int, cause: Cause | None) -> Iterator[Candidate]:
    """What may help at `length`: windows with sinks always, scales unless distance is the cause.

    Args:
        trained: the trained length.
        length: the length at which they are tried.
        cause: of the damage, if it is known.
    """
    diluted = cause is None or cause.name != "distance"
    sizes = [(trained, 1), (trained, SINKS)]
    if diluted:
        yield scaled(trained)
        sizes.append((trained * 3 // 2, SINKS))
    yield from (windowed(size, sinks) for size, sinks in sizes if size < length)
    if diluted and 4 * trained < length:
        yield scaled(trained, window=4 * trained)


def scaled(trained: int, *, window: int | None = None) -> Candidate:
    """Logits times log n / log trained, in a window if one is given.

    Args:
        trained: the trained length.
        window: number of the nearest keys that are seen besides the sinks.
    """
    rule = f"scale=at.LogLengthFrom({trained})"
    if window is None:
        options = {"scale": LogLengthFrom(trained)}
        return Candidate("scale with log n", f"at.steer(model, {rule})", options)
    inside = windowed(window, SINKS)
    call = f"at.steer(model, {rule}, mask=at.lookback({window}) | at.prefix({SINKS}))"
    name = f"scale with log n in a {inside.name}"
    return Candidate(name, call, {"scale": LogLengthFrom(trained), **inside.options})


def windowed(size: int, sinks: int) -> Candidate:
    """The nearest `size` keys and the first `sinks`.

    Args:
        size: number of the nearest keys.
        sinks: number of the first keys.
    """
    call = f"at.steer(model, mask=at.lookback({size}) | at.prefix({sinks}))"
    name = f"window of {size:,} with {sinks} sink{'s' if sinks > 1 else ''}"
    return Candidate(name, call, {"mask": lookback(size) | prefix(sinks)})


def planned(plan: Plan, path: str | None) -> Candidate:
    """A calibrated plan.

    Args:
        plan: the plan.
        path: where it is written; None if it is not.
    """
    given = "scan.plan" if path is None else f"at.Plan.load({path!r})"
    return Candidate(PLAN, f"at.steer(model, {given})", {"plan": plan})


def tried(beyond: Beyond, wanted: Iterator[Candidate]) -> list[Remedy]:
    """Every candidate that the model takes, run on the windows; the best first.

    Args:
        beyond: the windows, with the losses of the untouched model.
        wanted: what to try.
    """
    found = []
    for candidate in wanted:
        losses = _with(beyond, candidate)
        if losses is not None:
            found.append(_remedy(beyond, candidate, losses))
    return sorted(found, key=lambda remedy: remedy.change.after)


def _with(beyond: Beyond, candidate: Candidate) -> Tensor | None:
    """Losses with the change; None if the model refuses it."""
    with warnings.catch_warnings(category=RuntimeWarning, action="ignore"):
        handle = steer(beyond.model, **candidate.options)
        try:
            return beyond.losses()
        except AttentropyError:
            return None
        finally:
            handle.undo()


def _remedy(beyond: Beyond, candidate: Candidate, losses: Tensor) -> Remedy:
    past = losses[:, -beyond.tail :]
    return Remedy(
        name=candidate.name,
        call=candidate.call,
        length=beyond.length,
        change=paired(stretches(beyond.past), stretches(past)),
        perplexity_before=_perplexity(beyond.whole),
        perplexity_after=_perplexity(losses),
    )


def _perplexity(losses: Tensor) -> float:
    return math.exp(min(float(losses.double().mean()), 700.0))
