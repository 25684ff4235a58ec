"""Extension: the table of candidates, the choice, and how to use it."""

from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from torch import nn

from attentropy.extensions import serving
from attentropy.extensions.candidates import TRUNCATED, UNTOUCHED, Setting, plan_of
from attentropy.extensions.export import export
from attentropy.extensions.reading import Attempt
from attentropy.extensions.record import ExtensionError, Record
from attentropy.models.losses.paired import SURE, Paired, paired
from attentropy.models.plan import Judged, Plan
from attentropy.models.record.tables import Printed
from attentropy.models.rope.rotary import rope_parameters

NEAR = 0.03  # nats per token above truncation that an extension may cost


class Outcome(NamedTuple):
    """One candidate compared with truncation, on the texts that both have read.

    Attributes:
        name: of the candidate.
        texts: number of texts.
        loss: truncation -> the candidate, over stretches of 64 tokens.
        digits: the same for the digits of passkeys; None if none was asked for.
        hits: passkeys found.
        asked: passkeys asked for.
    """

    name: str
    texts: int
    loss: Paired
    digits: Paired | None
    hits: int
    asked: int

    @property
    def is_near(self) -> bool:
        """Is its loss at most 0.03 above that of truncation?"""
        return self.loss.difference <= NEAR

    @property
    def is_surely_near(self) -> bool:
        """Is this so even with two standard errors added?"""
        return self.is_near and self.loss.difference + SURE * (self.loss.error or 0.0) <= NEAR

    @property
    def is_worse(self) -> bool:
        """Is its loss above that of truncation by 0.03 and two standard errors?"""
        return not self.is_near and self.loss.hurts

    @property
    def helps(self) -> bool:
        """Better than truncation by two standard errors: in loss, or in retrieval at equal loss."""
        if self.digits is not None and self.digits.helps and self.is_near:
            return True
        return self.loss.helps and not (self.digits is not None and self.digits.hurts)

    @property
    def order(self) -> tuple[bool, float, float]:
        """Sorts the best first: near truncation, then by the digits, then by the loss."""
        digits = 0.0 if self.digits is None else self.digits.after
        return not self.is_near, digits if self.is_near else 0.0, self.loss.after


class Extension:
    """What was tried to make a model read longer texts, and the results.

    Args:
        record: everything that was measured.
        model: the model, for `export`.
        exported: choose only what can be exported.
    """

    def __init__(self, record: Record, model: nn.Module, *, exported: bool = False) -> None:
        self.record, self.model, self.exported = record, model, exported

    def __repr__(self) -> str:
        return f"Extension({self.sentence!r})"

    @property
    def outcomes(self) -> list[Outcome]:
        """Every candidate that read a text, the best first; those on fewer texts come last."""
        names = dict.fromkeys(trial.candidate for trial in self.record.trials)
        found = [_outcome(self.record, name) for name in names]
        most = max((one.texts for one in found), default=0)
        return sorted(found, key=lambda one: (one.texts < most, one.order))

    @property
    def ranked(self) -> list[str]:
        """Names of candidates that change the model, the best first."""
        names = (one.name for one in self.outcomes)
        kept = [name for name in names if name not in (TRUNCATED, UNTOUCHED)]
        if not self.exported:
            return kept
        return [name for name in kept if self.record.candidate(name).by_row is None]

    def leaders(self, count: int) -> list[str]:
        """Who reads the other texts: the best few, and the untouched model if it may be good.

        Args:
            count: the number of candidates besides the untouched model.
        """
        plain = next((one for one in self.outcomes if one.name == UNTOUCHED), None)
        whole = [UNTOUCHED] if plain is not None and not plain.is_worse else []
        return [*self.ranked[:count], *whole]

    @cached_property
    def best(self) -> Setting | None:
        """The best candidate that helps; None if nothing does."""
        by_name = {one.name: one for one in self.outcomes}
        chosen = next((name for name in self.ranked if by_name[name].helps), None)
        untouched = by_name.get(UNTOUCHED)
        if chosen is None or (untouched is not None and untouched.order < by_name[chosen].order):
            return None
        return self.record.candidate(chosen)

    @property
    def plan(self) -> Plan | None:
        """The plan for `steer`, with its effects; None if nothing helps or no plan fits."""
        plan = None if self.best is None else plan_of(self.best, self.record.task)
        if plan is None or self.best is None:
            return None
        record = self.record
        change = _beside(record, UNTOUCHED, self.best.name)
        judged = Judged(
            length=record.task.to,
            last=record.last,
            held_out=True,
            change=paired(*_columns(change, "losses")),
            truncation=_outcome(record, self.best.name).loss,
        )
        return msgspec.structs.replace(plan, judged=judged)

    @property
    def sentence(self) -> str:
        """The result in one sentence."""
        task = self.record.task
        at = f"At {task.to:,} tokens"
        by_name = {one.name: one for one in self.outcomes}
        if self.best is None:
            whole = by_name[UNTOUCHED]
            if whole.is_surely_near:
                return f"{at} the model needs no extension: untouched, its loss is {whole.loss}."
            return (
                f"{at} nothing that was tried beats reading the last {task.trained:,} only by two "
                "standard errors."
            )
        one = by_name[self.best.name]
        found = f", and {one.hits} of {one.asked} passkeys are found" if one.asked else ""
        return (
            f"{at} use {one.name}: the loss of the last {self.record.last:,} tokens is "
            f"{one.loss.after:.3f}, {_signed(one.loss)} against reading the last "
            f"{task.trained:,} only{found}."
        )

    @property
    def call(self) -> str | None:
        """The Python that applies the plan of a file plan.json; None if nothing helps."""
        return self.call_with("plan.json")

    def call_with(self, path: str | Path) -> str | None:
        """The Python that applies the choice; None if nothing helps.

        Args:
            path: where the plan is.
        """
        if self.best is None:
            return None
        if self.best.window is not None:
            mask = f"at.lookback({self.best.window}) | at.prefix({self.best.sinks})"
            return f"at.steer(model, mask={mask})"
        return f'at.steer(model, at.Plan.load("{Path(path).as_posix()}"))'

    def table(self) -> Any:
        """Every candidate compared with truncation, as a rich table."""
        columns = (
            "", "texts", "loss", "above truncation", "passkeys", "loss of digits",
            "digits against truncation",
        )  # fmt: skip
        shown = Printed(
            *columns, title=f"{self.record.task.to:,} tokens", box=None, padding=(0, 1, 0, 0)
        )
        shown.columns[0].overflow = "fold"  # names stay whole in a narrow terminal
        for place in (0, 3, 6):  # words, and a difference with its error, stay on a line of 80
            shown.columns[place].min_width = 14
        for one in self.outcomes:
            digits = "" if one.digits is None else f"{one.digits.after:.3f}"
            against = "" if one.digits is None else _signed(one.digits)
            keys = f"{one.hits} of {one.asked}" if one.asked else ""
            shown.add_row(
                one.name, str(one.texts), f"{one.loss.after:.3f}", _signed(one.loss), keys,
                digits, against,
            )  # fmt: skip
        return shown

    def curves(self, count: int = 3) -> list[dict[str, Any]]:
        """Loss by position of the untouched model and the best few, as rows of a figure.

        Args:
            count: the number of candidates besides the untouched model.
        """
        return [
            {
                "candidate": name,
                "seed": trial.window,
                "position": bucket.stop,
                "loss": bucket.loss,
            }
            for name in (UNTOUCHED, *self.ranked[:count])
            for trial in self.record.of(name)
            for bucket in trial.buckets
        ]

    def export(self, folder: str | Path, *, tokenizer: Any = None) -> list[str]:
        """Write the extended model as a folder of transformers; returns commands that serve it.

        Args:
            folder: a new or empty folder.
            tokenizer: of transformers, written beside the model.
        """
        if self.best is None:
            raise ExtensionError("nothing is exported, because nothing that was tried helps")
        if self.best.by_row is not None:
            raise ExtensionError(f"{self.best.name} cannot be exported: {self.best.by_row}")
        plan = self.plan
        assert plan is not None
        export(self.model, plan, folder, tokenizer=tokenizer)
        theta = None if plan.rope is None else rope_parameters(self.model).get("rope_theta")
        return serving.lines(plan, folder, theta=theta)

    def save(self, path: str | Path) -> None:
        """Write everything that was measured.

        Args:
            path: the file.
        """
        Path(path).write_bytes(self.record.encoded())


def _beside(record: Record, home: str, name: str) -> list[tuple[Attempt, Attempt]]:
    """Attempts of two candidates on the texts that both have read."""
    first = {trial.window: trial for trial in record.of(home)}
    return [(first[t.window], t) for t in record.of(name) if t.window in first]


def _outcome(record: Record, name: str) -> Outcome:
    both = _beside(record, TRUNCATED, name)
    loss = paired(*_columns(both, "losses"))
    asked = sum(len(trial.digits) for _, trial in both)
    return Outcome(
        name=name,
        texts=len(both),
        loss=loss,
        digits=paired(*_columns(both, "digits")) if asked else None,
        hits=sum(sum(trial.hits) for _, trial in both),
        asked=asked,
    )


def _columns(both: list[tuple[Attempt, Attempt]], field: str) -> tuple[list[float], list[float]]:
    one, two = ([value for pair in both for value in getattr(pair[side], field)] for side in (0, 1))
    return one, two


def _signed(change: Paired) -> str:
    error = "" if change.error is None else f" ± {change.error:.3f}"
    return f"{change.difference:+.3f}{error}"
