"""The one place where attentropy.models watches and steers calls of attention.

Nothing is installed unless a model is watched or steered; attention then runs as it is.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import Tensor

from attentropy.core.call import Call
from attentropy.core.resolve import Options
from attentropy.core.results import COMPUTED, Attended

Compute = Callable[[], Attended]
Made = TypeVar("Made")
Make = Callable[[Tensor, Tensor, Options], Made]
"""Makes a call of queries, keys and options; raises if they do not go together."""


@dataclass
class Hooks:
    """Functions that calls of attention go through; None unless attentropy.models installs them.

    Attributes:
        change: makes a call of other queries, keys and options than those that are asked for.
        record: computes a resolved call and records it.
        skip: computes what cannot be recorded, and notes what it was.
    """

    change: Callable[[Tensor, Tensor, Options, Make[Any]], Any] | None = None
    record: Callable[[Call, Compute], Attended] | None = None
    skip: Callable[[str, Compute], Attended] | None = None


hooks = Hooks()
"""The hooks of this process."""


def installed() -> bool:
    """Whether calls of attention go through any hook."""
    return hooks.change is not None or hooks.record is not None


def changed(q: Tensor, k: Tensor, options: Options, make: Make[Made]) -> Made:
    """A call of queries, keys and options after steering has changed them.

    Where the changed call cannot be made, it is the call that was asked for.

    Args:
        q: queries.
        k: keys.
        options: those of attend().
        make: makes the call.
    """
    if hooks.change is None:
        return make(q, k, options)
    made: Made = hooks.change(q, k, options, make)
    return made


def recorded(call: Call, compute: Callable[[Call], Attended]) -> Attended:
    """Compute a call, and record it if the running module is watched.

    A watch records every statistic, whichever the call asks for; the caller gets what it asked for.

    Args:
        call: a resolved call.
        compute: gives the result of a call.
    """
    if hooks.record is None:
        return compute(call)
    whole = call._replace(asked=COMPUTED)
    found = hooks.record(whole, lambda: compute(whole))
    return Attended(found.out, found.stats.only(call.asked))


def skipped(what: str, compute: Compute) -> Attended:
    """Compute, and tell whoever watches the running module that `what` is not recorded.

    Args:
        what: the name of the function.
        compute: gives its result.
    """
    return compute() if hooks.skip is None else hooks.skip(what, compute)
