"""What a watch saw of every module with attention, and what it missed.

The list has modules that attend and modules that might: those whose name or class says attention,
and those in the same list as layers that attend, as in hybrid models. Containers are left out.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

import msgspec

if TYPE_CHECKING:
    from rich.table import Table

    from attentropy.models.record.accumulators import Owner
    from attentropy.models.record.recorder import Recorder

Status = Literal["verified", "beside", "partly", "unseen", "no attention"]
STATES = get_args(Status)
MISSED = ("partly", "unseen")


class ModuleCoverage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a watch saw of one module.

    Attributes:
        module: its name in the model.
        status: "verified" if all its attention was recorded, and attend() reproduces it or only
            observes it (`why` says where this was not compared); "beside" if the model's own
            function serves and its softmax is recorded; "partly" if some of its attention was
            recorded and some was not; "unseen" if none was; "no attention" if it makes none itself.
        why: the reason, where there is one.
        calls: number of places in which its attention was recorded.
    """

    module: str
    status: Status
    why: str = ""
    calls: int = 0


def covered(
    recorder: "Recorder", *, verified: Callable[[str], bool], might: Callable[[str], bool]
) -> list[ModuleCoverage]:
    """What was seen of the modules that attend or may attend, in the order of the model.

    Args:
        recorder: of the watch.
        verified: whether calls of a module by name were compared with the model's own.
        might: whether a module by name is called attention.
    """
    rows = [_of(owner, recorder, verified=verified) for owner in recorder.owners]
    chosen = _told_of([row.module for row in rows], {r.module for r in rows if _attends(r)}, might)
    return [row for row in rows if row.module in chosen] or rows[:1]


def summary(rows: Sequence[ModuleCoverage]) -> str:
    """What was seen, in a sentence; "" if there are no rows.

    Args:
        rows: what was seen of each module.

    >>> summary([ModuleCoverage(module="a", status="verified", calls=1)])
    'All attention was seen: 1 module verified.'
    >>> summary([ModuleCoverage(module="a", status="unseen", why="flex_attention")])
    'Not all attention was seen: 1 module unseen; a (flex_attention).'
    """
    if not rows:
        return ""
    counts = Counter(row.status for row in rows)
    told = ", ".join(_counted(counts[status], status) for status in STATES if counts[status])
    missed = [f"{row.module or 'the model'} ({row.why})" for row in rows if row.status in MISSED]
    if not missed:
        return f"All attention was seen: {told}."
    more = f" and {len(missed) - 3:,} more" if len(missed) > 3 else ""
    return f"Not all attention was seen: {told}; {', '.join(missed[:3])}{more}."


def _counted(count: int, status: str) -> str:
    """Like "5 modules verified", "1 module without attention"."""
    modules = "module" if count == 1 else "modules"
    return f"{count:,} {modules} {status.replace('no attention', 'without attention')}"


def _attends(row: ModuleCoverage) -> bool:
    return row.status != "no attention"


def _told_of(names: list[str], attend: set[str], might: Callable[[str], bool]) -> set[str]:
    """Modules that attend, others that might, and layers without attention beside those with it."""
    told, around = set(attend), {part for name in attend for part in _around(name)}
    for name in names:  # a module comes before those inside it
        if name and name not in around and might(name) and told.isdisjoint(_around(name)):
            told.add(name)
    within = {part for name in told for part in (name, *_around(name))}
    layers = {_layer_of(name) for name in attend}
    rows = {name.rpartition(".")[0] for name in layers if name is not None}
    return told | {
        name
        for name in names
        if name not in within and name == _layer_of(name) and name.rpartition(".")[0] in rows
    }


def _around(name: str) -> list[str]:
    """Names of the modules around one, without the whole model.

    >>> _around("layers.3.attn")
    ['layers', 'layers.3']
    """
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts))]


def _layer_of(name: str) -> str | None:
    """The outermost numbered module that one is, or is in; None if none is numbered.

    >>> _layer_of("encoder.layers.3.blocks.1.attn")
    'encoder.layers.3'
    """
    path = (*_around(name), name)
    return next((part for part in path if part.rpartition(".")[2].isdigit()), None)


def _of(owner: "Owner", recorder: "Recorder", *, verified: Callable[[str], bool]) -> ModuleCoverage:
    missed, beside = recorder.missed.get(owner.name), recorder.beside.get(owner.name)
    places = [place for place, slot in owner.slots.items() if slot.length]

    def told(status: Status, why: str = "") -> ModuleCoverage:
        return ModuleCoverage(module=owner.name, status=status, why=why, calls=len(places))

    if missed is not None:
        return told("partly" if places else "unseen", missed)
    if not places:
        return told("no attention", _unsure(recorder) if owner.ran else "it did not run")
    if beside is not None:
        return told("beside", beside)
    if all(place.operator == "softmax" for place in places):
        return told("beside", "attention computed by hand, observed at its softmax")
    return told("verified", "" if verified(owner.name) else _not_compared(recorder))


def _unsure(recorder: "Recorder") -> str:
    """Why a module may attend though no attention was seen; "" if it does not."""
    if recorder.verify == "never":
        return 'none visible from Python; verify="never" looks no deeper'
    return "" if recorder.counts else "none visible from Python; a compiled model hides the rest"


def _not_compared(recorder: "Recorder") -> str:
    return (
        'not compared: verify="never"' if recorder.verify == "never" else "not compared: compiled"
    )


def table(rows: Iterable[ModuleCoverage]) -> "Table":
    """A rich table; print() shows it too.

    Args:
        rows: what to show.
    """
    from attentropy.models.record.tables import Printed

    shown: Any = Printed("module", "seen", "why", title="coverage", box=None, padding=(0, 0, 0, 1))
    for row in rows:
        shown.add_row(row.module or "(the model)", row.status, row.why)
    return shown
