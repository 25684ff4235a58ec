"""What a watch saw of every module, and what it did not."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal

import msgspec

if TYPE_CHECKING:
    from rich.table import Table

    from attentropy.models.record.accumulators import Owner
    from attentropy.models.record.recorder import Recorder

Status = Literal["verified", "beside", "partly", "unseen", "no attention"]


class ModuleCoverage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a watch saw of one module.

    Attributes:
        module: its name in the model.
        status: "verified" if all its attention was recorded, and attend() reproduces it or only
            observes it; "beside" if the model's own function serves and its softmax is recorded;
            "partly" if some of its attention was recorded and some was not; "unseen" if none was;
            "no attention" if it makes none itself.
        why: the reason, where there is one.
        calls: number of places in which its attention was recorded.
    """

    module: str
    status: Status
    why: str = ""
    calls: int = 0


def covered(recorder: "Recorder", *, verified: Callable[[str], bool]) -> list[ModuleCoverage]:
    """What was seen of every watched module, in the order of the model.

    Args:
        recorder: of the watch.
        verified: whether calls of a module by name were compared with the model's own.
    """
    return [_of(owner, recorder, verified=verified) for owner in recorder.owners]


def _of(owner: "Owner", recorder: "Recorder", *, verified: Callable[[str], bool]) -> ModuleCoverage:
    missed, beside = recorder.missed.get(owner.name), recorder.beside.get(owner.name)
    places = [place for place, slot in owner.slots.items() if slot.length]

    def told(status: Status, why: str = "") -> ModuleCoverage:
        return ModuleCoverage(module=owner.name, status=status, why=why, calls=len(places))

    if missed is not None:
        return told("partly" if places else "unseen", missed)
    if not places:
        return told("no attention", "" if owner.ran else "it did not run")
    if beside is not None:
        return told("beside", beside)
    if all(place.operator == "softmax" for place in places):
        return told("beside", "attention computed by hand, observed at its softmax")
    return told("verified", "" if verified(owner.name) else "compiled or not compared")


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
