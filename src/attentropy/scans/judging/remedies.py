"""Remedies: each is tried on the text before it is mentioned."""

import math
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from attentropy.core.errors import AttentropyError, DistributedError
from attentropy.core.masks.kinds import lookback, prefix
from attentropy.core.scales import LogLengthFrom
from attentropy.models.losses.cause import CauseName
from attentropy.models.losses.paired import paired, stretches
from attentropy.models.plan import Plan
from attentropy.models.rope.rotary import why_fixed
from attentropy.models.rope.settings import yarn
from attentropy.models.steer.steer import steer
from attentropy.scans.judging import words
from attentropy.scans.judging.breaks import Beyond
from attentropy.scans.schema import PLAN, Remedy, Scan

SINKS = 4

POSITIONS = "positions.json"


@dataclass(frozen=True)
class Treatment:
    """A change of `steer` that may help.

    Attributes:
        name: what it is, in a few words.
        call: what applies it.
        options: what `steer` gets.
        plan: the plan in `options`, if it has to be written to its own file.
    """

    name: str
    call: str
    options: dict[str, Any]
    plan: Plan | None = None


def candidates(
    model: nn.Module,
    trained: int,
    length: int,
    cause: CauseName | None,
    *,
    most: float | None = None,
    folder: str | None = None,
) -> Iterator[Treatment]:
    """What may help: windows with sinks, scales against dilution, positions against distance.

    A softcap may help against either: logits that training has never seen are bounded by
    twice those that it has.

    Args:
        model: the model.
        trained: the trained length.
        length: the length at which they are tried.
        cause: of the damage, if it is known.
        most: the largest logit in the trained range, for a softcap; None if it is not known.
        folder: where plans are written; None if they are not.
    """
    diluted = cause != "distance"
    if cause != "dilution" and why_fixed(model) is None:
        yield positioned(model, trained, length, folder)
    if most is not None:
        yield capped(most)
    sizes = [(trained, 1), (trained, SINKS)]
    if diluted:
        yield scaled(trained)
        sizes.append((trained * 3 // 2, SINKS))
    yield from (windowed(size, sinks) for size, sinks in sizes if size < length)
    if diluted and 4 * trained < length:
        yield scaled(trained, window=4 * trained)


def usual_cause(model: nn.Module) -> CauseName:
    """What such a model usually suffers from past its trained length, before it was probed.

    Args:
        model: the model.
    """
    return "distance" if why_fixed(model) is None else "dilution"


def scaled(trained: int, *, window: int | None = None) -> Treatment:
    """Logits times log n / log trained, in a window if one is given.

    Args:
        trained: the trained length.
        window: number of the nearest keys that are seen besides the sinks.
    """
    rule = f"scale=at.LogLengthFrom({trained})"
    if window is None:
        options = {"scale": LogLengthFrom(trained)}
        return Treatment("scale with log n", f"at.steer(model, {rule})", options)
    inside = windowed(window, SINKS)
    call = f"at.steer(model, {rule}, mask=at.lookback({window}) | at.prefix({SINKS}))"
    name = f"scale with log n in a {inside.name}"
    return Treatment(name, call, {"scale": LogLengthFrom(trained), **inside.options})


def capped(most: float) -> Treatment:
    """Logits bounded by c tanh(s / c), with c twice the largest logit of training, in two digits.

    The largest logit itself then becomes 8 % smaller, and smaller ones hardly change.

    Args:
        most: the largest logit.
    """
    cap = float(f"{2 * most:.2g}")
    return Treatment(f"softcap of {cap:g}", f"at.steer(model, softcap={cap!r})", {"softcap": cap})


def largest_logit(scan: Scan) -> float | None:
    """The largest logit of all heads at the trained length; None if none is positive and finite.

    Args:
        scan: with measures.
    """
    home = words.home(scan)
    known = [] if home is None else [row.max_logit for row in home.rows]
    found = max((x for x in known if x is not None and math.isfinite(x)), default=0.0)
    return found if found > 0 else None


def windowed(size: int, sinks: int) -> Treatment:
    """The nearest `size` keys and the first `sinks`.

    Args:
        size: number of the nearest keys.
        sinks: number of the first keys.
    """
    call = f"at.steer(model, mask=at.lookback({size}) | at.prefix({sinks}))"
    name = f"window of {size:,} with {sinks} sink{'s' if sinks > 1 else ''}"
    return Treatment(name, call, {"mask": lookback(size) | prefix(sinks)})


def positioned(model: nn.Module, trained: int, length: int, folder: str | None) -> Treatment:
    """Rotary positions scaled by YaRN, with its own temperature.

    Args:
        model: the model.
        trained: the trained length.
        length: the length that the settings are for.
        folder: where plans are written; None if they are not.
    """
    plan = Plan(
        model=type(model).__name__,
        reference=trained,
        hold=None,
        method=None,
        lengths=(trained,),
        factors={},
        entropy={},
        spread={},
        rope=yarn(trained=trained, to=length),
    )
    given = "scan.positions" if folder is None else f"at.Plan.load('{folder}/{POSITIONS}')"
    name = f"positions by YaRN x {length / trained:.3g}"
    return Treatment(name, f"at.steer(model, {given})", {"plan": plan}, plan)


def planned(plan: Plan, folder: str | None) -> Treatment:
    """A calibrated plan.

    Args:
        plan: the plan.
        folder: where plans are written; None if they are not.
    """
    given = "scan.plan" if folder is None else f"at.Plan.load('{folder}/plan.json')"
    return Treatment(PLAN, f"at.steer(model, {given})", {"plan": plan})


def tried(beyond: Beyond, wanted: Iterable[Treatment]) -> list[Remedy]:
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


def _with(beyond: Beyond, candidate: Treatment) -> Tensor | None:
    """Losses with the change; None if the model refuses it."""
    with warnings.catch_warnings(category=RuntimeWarning, action="ignore"):
        handle = steer(beyond.model, **candidate.options)
        try:
            found = beyond.losses()
            handle.require()
            return found
        except DistributedError:
            raise
        except AttentropyError:
            return None
        finally:
            handle.undo()


def _remedy(beyond: Beyond, candidate: Treatment, losses: Tensor) -> Remedy:
    past = losses[:, -beyond.tail :]
    return Remedy(
        name=candidate.name,
        call=candidate.call,
        plan=candidate.plan,
        length=beyond.length,
        change=paired(stretches(beyond.past), stretches(past)),
        perplexity_before=_perplexity(beyond.whole),
        perplexity_after=_perplexity(losses),
    )


def _perplexity(losses: Tensor) -> float:
    return math.exp(min(float(losses.double().mean()), 700.0))
