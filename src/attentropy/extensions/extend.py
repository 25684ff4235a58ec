"""extend(): make a trained model read further, by what was tried on text and held.

    found = at.extend(model, tokens, to=16384)
    print(found.table())
    at.steer(model, found.plan)
    found.export("longer")

Candidates are screened with a cheap probe of distances; the best few, beside truncation and the
untouched model, read whole texts and are asked for passkeys.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from attentropy.core.errors import ArgumentError, ArgumentTypeError
from attentropy.extensions import candidates as kinds
from attentropy.extensions import fitting, passkeys
from attentropy.extensions.candidates import TRUNCATED, UNTOUCHED, Setting, Task
from attentropy.extensions.export import check_exportable
from attentropy.extensions.passkeys import Encode, Haystack
from attentropy.extensions.reading import tried
from attentropy.extensions.record import ExtensionError, Record
from attentropy.extensions.result import Extension
from attentropy.extensions.screening import Probe, Screened
from attentropy.models.losses.paired import paired
from attentropy.models.trained import trained_length
from attentropy.models.watch import watch

LAST = 1024
FEW, ENOUGH = 3, 24576  # texts at least; tokens of all texts where they are short
Tell = Callable[[str], object]
Keep = Callable[[Record], object]


def extend(
    model: nn.Module,
    tokens: Tensor | Sequence[int],
    *,
    to: int,
    trained: int | None = None,
    encode: Encode | None = None,
    begin: Sequence[int] = (),
    texts: int | None = None,
    finalists: int = 3,
    per_head: bool = True,
    exported: bool = False,
    done: Record | None = None,
    tell: Tell = lambda text: None,
    keep: Keep = lambda record: None,
) -> Extension:
    """Try what may let `model` read `to` tokens, and choose what text and retrieval say.

    Args:
        model: a causal model that predicts the next token and that `steer` can change.
        tokens: ids [n] of text: the first quarter calibrates, texts of `to` tokens from the rest
            judge.
        to: the length that the model shall read.
        trained: the length that it was trained at; by default what its config says.
        encode: a string to ids, for passkeys; without it there are none.
        begin: special tokens that every text begins with, such as a BOS.
        texts: number of texts that judge, at least 3 and more of short ones by default; their
            ends do not overlap.
        finalists: number of candidates that read all texts, besides truncation and the untouched
            model; as many from the probe, and what it cannot judge, read a third of them.
        per_head: fit a temperature for each head too.
        exported: choose only what `export` can write; refuses at once what it cannot.
        done: the record of a stopped extension of the same model and tokens.
        tell: is told in words what is done now.
        keep: receives the record after every measurement.
    """
    ids, texts = _check(model, tokens, to, texts)
    task = _task(model, ids, to=to, trained=trained)
    if exported:
        check_exportable(model)
    record = _begun(done, task, ids)
    work = _Extending(model, record, ids, texts, encode, tuple(begin), tell, keep)
    work.screen(per_head=per_head)
    work.try_all(finalists, exported=exported)
    record.complete = True
    keep(record)
    return Extension(record, model, exported=exported)


class _Extending:
    """The steps of extend(), each of which skips what the record has."""

    def __init__(
        self,
        model: nn.Module,
        record: Record,
        ids: Tensor,
        texts: int,
        encode: Encode | None,
        begin: tuple[int, ...],
        tell: Tell,
        keep: Keep,
    ) -> None:
        self.model, self.record, self.task = model, record, record.task
        self.tell, self.keep, self.encode, self.begin = tell, keep, encode, begin
        self.untouched: Tensor | None = None
        calibration = ids[: len(ids) // 4]
        if len(calibration) < self.task.to and kinds.why_unscaled(model) is not None:
            calibration = ids[: self.task.to]
        self.probe = Probe.of(model, self.task, calibration, last=record.last, begin=begin)
        starts = torch.linspace(len(ids) // 4, len(ids) - self.task.to, texts).long().tolist()
        self.texts = [ids[start : start + self.task.to] for start in starts]

    def screen(self, *, per_head: bool) -> None:
        """Probe positions, then temperatures on the best of them."""
        why = kinds.why_unscaled(self.model)
        if why is not None:
            self.record.note(f"No scaling of positions was tried: {why}.")
        plain = Setting(name=UNTOUCHED)
        self._add(plain)
        positions = kinds.of_positions(self.model, self.task)
        scales = [Setting(name="log n", log_length=True)]
        self._screen([plain, *positions, *scales])
        best = self.record.candidate(self._ranked()[0])
        if f"{best.name}, fitted temperature" not in self._names() and best.heads is None:
            self._fit(best, per_head=per_head)

    def _fit(self, best: Setting, *, per_head: bool) -> None:
        """Temperatures on the best positions: entropy held, one for all, one for each head."""
        self.tell(f"entropy of {best.name}")
        held = fitting.entropy_held(best, self.model, self.probe.fit)
        assert held.heads is not None
        start = fitting.typical(held.heads)
        self.tell(f"temperature of {best.name}")
        one = fitting.one_for_all(best, self.model, self.probe.fit, start=start)
        losses = self._screen([held, one])
        if not per_head:
            return
        name = f"{best.name}, temperature per head"
        each = fitting.one_per_head(one, self.model, self.probe.fit, name=name, tell=self.tell)
        losses |= self._screen([each])
        change = paired(losses[one.name], losses[each.name])
        verdict = "beats" if change.helps else "does not beat"
        self.record.note(
            f"One temperature per head {verdict} one for all on calibration text that neither was "
            f"fitted to: {change}."
        )

    def _screen(self, candidates: list[Setting]) -> dict[str, Tensor]:
        """Probe what the record lacks; the losses of stretches by name."""
        known = {one.candidate for one in self.record.screened}
        missing = [one for one in candidates if one.name not in known]
        losses: dict[str, Tensor] = {}
        if missing and self.untouched is None:
            self.tell(f"probe: {UNTOUCHED}")
            self.untouched = self.probe.judge.of_candidate(Setting(name=UNTOUCHED), self.model)
        for one in missing:
            assert self.untouched is not None
            self.tell(f"probe: {one.name}")
            self._add(one)
            same = one.name == UNTOUCHED
            after = self.untouched if same else self.probe.judge.of_candidate(one, self.model)
            losses[one.name] = after
            change = paired(self.untouched, after)
            self.record.screened.append(Screened(candidate=one.name, change=change))
            self.keep(self.record)
        return losses

    def try_all(self, finalists: int, *, exported: bool) -> None:
        """A third of the texts with everything shortlisted, the others with the best of that."""
        haystacks = self._haystacks()
        first = max(1, len(haystacks) // 3)
        shortlist = self._shortlist(finalists, exported=exported)
        always = [Setting(name=TRUNCATED, truncated=True), Setting(name=UNTOUCHED)]
        for window in range(first):
            for one in (*always, *shortlist):
                self._try(one, haystacks, window)
        so_far = [trial for trial in self.record.trials if trial.window < first]
        race = msgspec.structs.replace(self.record, trials=so_far)
        chosen = Extension(race, self.model, exported=exported).leaders(finalists)
        for window in range(first, len(haystacks)):
            for name in (TRUNCATED, *chosen):
                self._try(self.record.candidate(name), haystacks, window)

    def _shortlist(self, count: int, *, exported: bool) -> list[Setting]:
        """The best of the probe, and what it cannot judge."""
        ranked = [name for name in self._ranked() if name != UNTOUCHED]
        probed = [self.record.candidate(name) for name in ranked]
        others = [*kinds.clipping(self.model, self.task), *kinds.windows(self.task)]
        if exported:
            probed = [one for one in probed if one.by_row is None]
            others = []
        return [*probed[:count], *others]

    def _haystacks(self) -> list[Haystack]:
        """Texts with passkeys in them, if the model can find them at its trained length."""
        last, to = self.record.last, self.task.to
        plain = [passkeys.plain(text, length=to, begin=self.begin) for text in self.texts]
        if self.encode is None:
            self.record.note("No passkeys were asked for: there is no tokenizer.")
            return plain
        trained = self.task.trained
        try:
            inside = self._hidden(0, length=trained)
        except ArgumentError:
            self.record.note(f"No passkeys were asked for: {trained} tokens have no room for them.")
            return plain
        if self.record.inside is None:
            self.tell(f"passkeys at {trained}")
            one = Setting(name=UNTOUCHED)
            self.record.inside = tried(one, self.model, self.task, inside, window=0, last=last)
            self.keep(self.record)
        if not any(self.record.inside.hits):
            self.record.note(f"No passkeys were asked for: it finds none at {trained} tokens.")
            return plain
        return [self._hidden(i, length=to) for i in range(len(self.texts))]

    def _hidden(self, window: int, *, length: int) -> Haystack:
        assert self.encode is not None
        return passkeys.hidden(
            self.texts[window],
            self.encode,
            length=length,
            last=self.record.last,
            seed=window,
            begin=self.begin,
        )

    def _try(self, candidate: Setting, texts: list[Haystack], window: int) -> None:
        self._add(candidate)
        if any(trial.window == window for trial in self.record.of(candidate.name)):
            return
        self.tell(f"{candidate.name}, text {window + 1} of {len(texts)}")
        last = self.record.last
        trial = tried(candidate, self.model, self.task, texts[window], window=window, last=last)
        self.record.trials.append(trial)
        self.keep(self.record)

    def _add(self, candidate: Setting) -> None:
        if candidate.name not in self._names():
            self.record.candidates.append(candidate)

    def _names(self) -> list[str]:
        return [one.name for one in self.record.candidates]

    def _ranked(self) -> list[str]:
        """Names by the loss of the probe, the least first."""
        order = sorted(self.record.screened, key=lambda one: one.change.after)
        return [one.candidate for one in order]


def _task(model: nn.Module, ids: Tensor, *, to: int, trained: int | None) -> Task:
    if trained is None:
        known = trained_length(model)
        if known is None:
            rule = "given, for neither the model nor its config says it"
            raise ArgumentError("trained", rule, None)
        trained = known.tokens
    if to <= trained:
        raise ArgumentError("to", f"beyond the trained length {trained}", to)
    with torch.no_grad(), watch(model) as seen:
        device = next((p.device for p in model.parameters()), torch.device("cpu"))
        model(ids[None, : min(16, len(ids))].to(device))
    layers: dict[str, int] = {}
    for row in seen.heads():
        layers[row.layer] = max(layers.get(row.layer, 0), row.head + 1)
    return Task(model=type(model).__name__, trained=trained, to=to, layers=layers)


def _begun(done: Record | None, task: Task, ids: Tensor) -> Record:
    """The record to go on with, or a new one."""
    digest = hashlib.sha256(ids.numpy().astype("<i8").tobytes()).hexdigest()
    if done is None:
        last = max(1, min(LAST, task.trained // 2, task.to - task.trained))
        return Record(task=task, text=digest, last=last)
    if done.task != task or done.text != digest:
        raise ExtensionError("what was measured before is of another model, length or text")
    return done


def _check(model: Any, tokens: Any, to: Any, texts: Any) -> tuple[Tensor, int]:
    """Tokens as ids [n], and the number of texts."""
    if not isinstance(model, nn.Module):
        raise ArgumentTypeError("model", "a torch.nn.Module", type(model).__name__)
    for name, value, least in (("to", to, 2), ("texts", FEW if texts is None else texts, 1)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ArgumentError(name, f"an integer >= {least}", repr(value))
    if isinstance(tokens, str):
        raise ArgumentTypeError("tokens", "ids of tokens", "a string")
    ids = torch.as_tensor(tokens).reshape(-1)
    if ids.is_floating_point() or ids.dtype == torch.bool:
        raise ArgumentTypeError("tokens", "ids of tokens", f"numbers of type {ids.dtype}")
    judging, apart = len(ids) - len(ids) // 4, min(LAST, to // 2)
    fit = 1 + (judging - to) // apart if judging >= to else 0
    count = min(max(FEW, ENOUGH // to), max(FEW, fit)) if texts is None else texts
    if fit < count:
        least = -(-4 * (to + (count - 1) * apart) // 3)
        raise ArgumentError("tokens", f"at least {least} for {count} texts of {to}", len(ids))
    return ids.long().cpu(), count
