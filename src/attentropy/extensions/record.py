"""The measurements of an extension, as a file from which a stopped one continues."""

from pathlib import Path
from typing import Literal

import msgspec

from attentropy.core import formats
from attentropy.core.errors import AttentropyError
from attentropy.extensions.candidates import Setting, Task
from attentropy.extensions.reading import Attempt
from attentropy.extensions.screening import Screened


class ExtensionError(AttentropyError, ValueError):
    """An extension that cannot be used or continued; the message says why."""


class Record(
    msgspec.Struct,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="format",
    tag="attentropy.extension",
):
    """Everything that was measured; lists grow while the work goes on.

    Attributes:
        version: that of the file format.
        task: what the model was extended from, and to.
        text: SHA-256 of the tokens.
        last: tokens at the end of a text whose loss is judged.
        candidates: everything that was tried.
        screened: what the probe said.
        inside: the untouched model at its trained length, on the first text.
        trials: each finalist on each text.
        notes: what was left out, and why.
        complete: whether all was measured.
    """

    version: Literal[1] = 1
    task: Task
    text: str
    last: int
    candidates: list[Setting] = []
    screened: list[Screened] = []
    inside: Attempt | None = None
    trials: list[Attempt] = []
    notes: list[str] = []
    complete: bool = False

    def candidate(self, name: str) -> Setting:
        """The candidate of a name.

        Args:
            name: as tables have it.
        """
        return next(one for one in self.candidates if one.name == name)

    def of(self, name: str) -> list[Attempt]:
        """The trials of a candidate, in the order of the texts.

        Args:
            name: of the candidate.
        """
        found = [trial for trial in self.trials if trial.candidate == name]
        return sorted(found, key=lambda trial: trial.window)

    def note(self, text: str) -> None:
        """Keep a sentence for the report, once.

        Args:
            text: the sentence.
        """
        if text not in self.notes:
            self.notes.append(text)

    def encoded(self) -> bytes:
        """The content of the file."""
        return formats.encode(self, indent=1)

    @classmethod
    def load(cls, path: str | Path) -> "Record":
        """Read a file that `attentropy extend` wrote.

        Args:
            path: the file.
        """
        data = Path(path).read_bytes()
        return formats.decode(data, cls, name=str(path), error=ExtensionError)
