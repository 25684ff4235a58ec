"""extend(): make a trained model read longer texts, with a method that was tried on text.

    found = at.extend(model, tokens, to=16384)
    print(found.table())
    at.steer(model, found.plan)
    found.export("longer")

Candidates are screened with a cheap probe of distances; the best few, next to truncation and the
untouched model, read whole texts and are asked for passkeys.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TypeVar

import msgspec
import torch
from torch import Tensor, nn

from attentropy.core.errors import ArgumentError, AttentropyError, UnsupportedError
from attentropy.distributed.team import ALONE, Team
from attentropy.extensions import candidates as kinds
from attentropy.extensions import passkeys
from attentropy.extensions.arguments import (
    LAST,
    check_begin,
    check_helpers,
    check_length,
    check_readable,
    checked,
    left_out,
    refused,
    whole,
)
from attentropy.extensions.candidates import TRUNCATED, UNTOUCHED, Setting, Task
from attentropy.extensions.export import check_exportable, why_no_factors
from attentropy.extensions.fits import far_windows, temperatures
from attentropy.extensions.fits.far_windows import FarProbe
from attentropy.extensions.passkeys import Encode, Haystack
from attentropy.extensions.reading import Attempt, tried
from attentropy.extensions.record import ExtensionError, Record
from attentropy.extensions.result import Extension
from attentropy.extensions.screening import Probe, Screened
from attentropy.models.intercept.candidates import device_of
from attentropy.models.losses.paired import paired
from attentropy.models.progress import Listener, ReadingCost, counted
from attentropy.models.rope import settings
from attentropy.models.tensor_parallel import team_for
from attentropy.models.trained import trained_length
from attentropy.models.watch import watch

ENTROPY, PARABOLA, BACKWARD = 3, 5, 3  # passes: inside and two of a search; points; per step
RETRIEVAL, HALF_WAY = "fitted to retrieval", "half way"
FITTED_TO_PASSKEYS = (
    "The candidate fitted to retrieval starts from YaRN. Its frequencies and temperatures were "
    "fitted to passkeys in the calibration text; the passkeys that judge it are worded alike, but "
    "have other texts, numbers and depths. Half way is the geometric mean of YaRN and the fit."
)
Keep = Callable[[Record], object]
T = TypeVar("T")


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
    listener: Listener | None = None,
    keep: Keep = lambda record: None,
    team: Team = ALONE,
) -> Extension:
    """Try methods that may let `model` read `to` tokens, and choose the best by loss and retrieval.

    Args:
        model: a causal model that predicts the next token and that `steer` can change.
        tokens: ids [n] of text: the first quarter calibrates, texts of `to` tokens from the rest
            judge.
        to: the length that the model should read.
        trained: the length that it was trained at; by default what its config says.
        encode: a string to ids, for passkeys; without it there are none.
        begin: special tokens that every text begins with, such as a BOS.
        texts: number of texts for the final comparison; by default at least 3, and more if they are
            short. Their ends do not overlap.
        finalists: number of candidates that read all texts, besides truncation and the untouched
            model. The same number of families from the probe, YaRN, and candidates that no probe
            can judge read a third of the texts.
        per_head: fit a temperature for each head too.
        exported: choose only what `export` can write; a model that cannot be exported is refused at
            once.
        done: the record of a stopped extension of the same model and tokens.
        listener: receives the current stage and the progress.
        keep: receives the record after every measurement.
        team: processes that share candidates and texts; each has the model and all arguments, and
            gets the whole result. None for a model whose heads processes share (tensor
            parallelism): each process calls extend() with all arguments.
    """
    listener = check_helpers(listener, done, encode)
    to, trained, texts, finalists = map(whole, (to, trained, texts, finalists))
    ids, texts = checked(model, tokens, to=to, texts=texts, trained=trained, finalists=finalists)
    team = team_for(model, team)
    first = check_begin(begin)
    check_readable(model, torch.cat([ids.new_tensor(first), ids]))
    check_length(model, to)
    task = task_of(model, ids, to=to, trained=trained)
    if to <= task.trained:
        raise ArgumentError("to", f"beyond the trained length {task.trained}", to)
    record = _begun(done, task, ids)
    if exported:
        check_exportable(model)
    for text in left_out(model, task, exported=exported):
        record.note(text)
        listener.say(text)
    work = _Extending(model, record, ids, texts, encode, first, listener, keep, team)
    listener.begin(work.expected(finalists, per_head=per_head, exported=exported))
    training = model.training
    model.eval()
    try:
        work.screen(per_head=per_head)
        work.try_all(finalists, per_head=per_head, exported=exported)
    except (IndexError, RuntimeError, ValueError) as error:
        if isinstance(error, AttentropyError) or record.trials:
            raise
        raise refused(model, to, error) from error
    finally:
        model.train(training)
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
        listener: Listener,
        keep: Keep,
        team: Team,
    ) -> None:
        self.model, self.record, self.task, self.team = model, record, record.task, team
        self.listener, self.keep, self.encode, self.begin = listener, keep, encode, begin
        self.cost = ReadingCost(model)
        self.untouched: Tensor | None = None
        calibration = ids[: len(ids) // 4]
        if len(calibration) < self.task.to and kinds.why_unscaled(model) is not None:
            calibration = ids[: self.task.to]
        self.calibration = calibration
        self.probe = Probe.of(model, self.task, calibration, last=record.last, begin=begin)
        starts = torch.linspace(len(ids) // 4, len(ids) - self.task.to, texts).long().tolist()
        self.texts = [ids[start : start + self.task.to] for start in starts]

    def screen(self, *, per_head: bool) -> None:
        """Probe positions, then temperatures on the best of them."""
        plain = Setting(name=UNTOUCHED)
        self._add(plain)
        positions = kinds.of_positions(self.model, self.task)
        scales = [Setting(name="log n", log_length=True)]
        self._screen([plain, *positions, *scales])
        best = self._fittest([*positions, *scales])
        if f"{best.name}, fitted temperature" not in self._names():
            self._fit(best, per_head=per_head)

    def _fittest(self, candidates: list[Setting]) -> Setting:
        """The best of the probe that is made for the length asked for: it overrates larger ones."""
        made = [one for one in candidates if one.reach in (None, self.task.to)]
        order = self._ranked()
        return min(made, key=lambda one: order.index(one.name))

    def _fit(self, best: Setting, *, per_head: bool) -> None:
        """Temperatures on the best positions: entropy held, one for all, one for each head."""
        held, one = self.team.of_first(lambda: self._fitted(best))
        losses = self._screen([held, one])
        if not per_head:
            return
        each = self.team.of_first(lambda: self._fitted_per_head(best, one))
        losses |= self._screen([each])
        change = paired(losses[one.name], losses[each.name])
        verdict = "beats" if change.helps else "does not beat"
        self.record.note(
            f"One temperature per head {verdict} one for all on calibration text that neither was "
            f"fitted to: {change}."
        )

    def _fitted(self, best: Setting) -> tuple[Setting, Setting]:
        """The best positions with factors that hold the entropy, and with one temperature."""
        self.listener.stage(f"entropy of {best.name}")
        with self._probing(ENTROPY, self.probe.fit):
            held = temperatures.entropy_held(best, self.model, self.probe.fit)
        assert held.heads is not None
        start = temperatures.typical(held.heads)
        self.listener.stage(f"temperature of {best.name}")
        with self._probing(PARABOLA, self.probe.fit):
            return held, temperatures.one_for_all(best, self.model, self.probe.fit, start=start)

    def _fitted_per_head(self, best: Setting, one: Setting) -> Setting:
        """The best positions with a temperature for each head, from one for all."""
        name = f"{best.name}, temperature per head"
        tell, row = self.listener.stage, self.probe.on(self.probe.rows[:1])
        with self._probing(BACKWARD * temperatures.STEPS, row):
            return temperatures.one_per_head(one, self.model, self.probe.fit, name=name, tell=tell)

    def _screen(self, candidates: list[Setting]) -> dict[str, Tensor]:
        """Probe what the record lacks; the losses of stretches by name."""
        known = {one.candidate for one in self.record.screened}
        missing = [one for one in candidates if one.name not in known]
        losses: dict[str, Tensor] = {}
        if missing and self.untouched is None:
            self.untouched = self.team.of_first(lambda: self._judged(Setting(name=UNTOUCHED)))
        for few in self._rounds(missing):
            for one, after in zip(few, self.team.map(self._judged, few), strict=True):
                assert self.untouched is not None
                self._add(one)
                losses[one.name] = after
                change = paired(self.untouched, after)
                self.record.screened.append(Screened(candidate=one.name, change=change))
            self.listener.advance((len(few) - 1) * self._probed(self.probe.judge))
            self.keep(self.record)
        return losses

    def _judged(self, one: Setting) -> Tensor:
        """Losses of stretches with a candidate."""
        if one.name == UNTOUCHED and self.untouched is not None:
            return self.untouched
        self.listener.stage(f"probe: {one.name}")
        with self._probing(1, self.probe.judge):
            return self.probe.judge.of_candidate(one, self.model)

    def _rounds(self, items: Sequence[T]) -> Iterator[Sequence[T]]:
        """As many items at a time as there are processes; the record is kept after each round."""
        for start in range(0, len(items), self.team.size):
            yield items[start : start + self.team.size]

    def _fit_to_retrieval(self, *, per_head: bool, exported: bool) -> list[Setting]:
        """Frequencies and temperatures by passkeys in the calibration text; [] if it cannot be."""
        name = f"{RETRIEVAL} x{self.task.to / self.task.trained:.4g}"
        if name not in self._names() and self._retrieves(exported=exported):
            found = self.team.of_first(lambda: self._fitted_to_retrieval(name, shared=not per_head))
            self._screen([found])
            self.record.note(FITTED_TO_PASSKEYS)
        if name in self._names() and f"{name}, {HALF_WAY}" not in self._names():
            self._screen([self._half_way(self.record.candidate(name))])
        return [one for one in self.record.candidates if one.family == name]

    def _retrieves(self, *, exported: bool) -> bool:
        """Can something be fitted to retrieval, and be exported if that is asked for?"""
        if len(self.calibration) < far_windows.WINDOW:
            return False
        if far_windows.why_not(self.model, self.task, self.encode) is not None:
            return False
        return not exported or why_no_factors(self.model, self.task.layers) is None

    def _fitted_to_retrieval(self, name: str, *, shared: bool) -> Setting:
        assert self.encode is not None
        base, seeds = self._yarn(name), range(far_windows.STEPS)
        probe = FarProbe.of(self.calibration, self.encode, self.task, seeds, begin=self.begin)
        tokens = sum(len(window.ids) for window in probe.windows)
        with counted(self.model, self.listener, work=self._fit_cost(), tokens=tokens):
            return far_windows.fitted(
                base, self.model, probe, name=name, waves=True, shared=shared,
                tell=self.listener.stage,
            )  # fmt: skip

    def _yarn(self, name: str) -> Setting:
        """YaRN as published, where a fit to retrieval begins."""
        return Setting(name=name, rope=settings.yarn(trained=self.task.trained, to=self.task.to))

    def _half_way(self, found: Setting) -> Setting:
        name = f"{found.name}, {HALF_WAY}"
        return far_windows.between(self._yarn(name), found, self.model, share=0.5, name=name)

    def _fit_cost(self) -> int:
        """The cost of a fit to retrieval: each step reads one window and goes back."""
        return BACKWARD * far_windows.STEPS * self._read(far_windows.WINDOW)

    def try_all(self, finalists: int, *, per_head: bool, exported: bool) -> None:
        """Read a third of the texts with all of the shortlist, the others with the best of it."""
        haystacks = self._haystacks()
        found = [one for one in haystacks if one.questions]
        fitted = self._fit_to_retrieval(per_head=per_head, exported=exported) if found else []
        first = max(1, len(haystacks) // 3)
        shortlist = self._shortlist(finalists, exported=exported)
        always = [Setting(name=TRUNCATED, truncated=True), Setting(name=UNTOUCHED)]
        self._try([*always, *shortlist, *fitted], haystacks, range(first))
        so_far = [trial for trial in self.record.trials if trial.window < first]
        race = msgspec.structs.replace(self.record, trials=so_far)
        chosen = Extension(race, self.model, exported=exported).leaders(finalists)
        others = [self.record.candidate(name) for name in (TRUNCATED, *chosen)]
        self._try(others, haystacks, range(first, len(haystacks)))

    def _shortlist(self, count: int, *, exported: bool) -> list[Setting]:
        """The best of each family by the probe, YaRN as published, and what no probe can judge."""
        names = (name for name in self._ranked() if name != UNTOUCHED)
        probed = [self.record.candidate(name) for name in names if RETRIEVAL not in name]
        others = [*kinds.clipping(self.model, self.task), *kinds.windows(self.task)]
        if exported:
            why = why_no_factors(self.model, self.task.layers)
            probed = [one for one in probed if one.by_row is None]
            probed = [one for one in probed if why is None or not one.has_factors]
            others = []
        families: dict[str, Setting] = {}
        for one in probed:
            families.setdefault(one.family, one)
        published = [one for one in probed if one.name == kinds.published(self.task)]
        best = [one for one in list(families.values())[:count] if one not in published]
        return [*published, *best, *others]

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
            self.listener.stage(f"passkeys at {trained}")
            one = Setting(name=UNTOUCHED)
            with self._reading(trained):
                self.record.inside = self.team.of_first(
                    lambda: tried(one, self.model, self.task, inside, window=0, last=last)
                )
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

    def _try(self, candidates: list[Setting], texts: list[Haystack], windows: range) -> None:
        """Every candidate on these texts, but for what the record has."""
        for one in candidates:
            self._add(one)
        known = {(trial.candidate, trial.window) for trial in self.record.trials}
        todo = [(one, window) for window in windows for one in candidates]
        missing = [pair for pair in todo if (pair[0].name, pair[1]) not in known]

        def attempt(pair: tuple[Setting, int]) -> Attempt:
            one, window = pair
            self.listener.stage(f"{one.name}, text {window + 1} of {len(texts)}")
            last, text = self.record.last, texts[window]
            with self._reading(self._reach(one)):
                return tried(one, self.model, self.task, text, window=window, last=last)

        for few in self._rounds(missing):
            self.record.trials += self.team.map(attempt, few)
            self.listener.advance(sum(self._read(self._reach(one)) for one, _ in few[1:]))
            self.keep(self.record)

    def _reach(self, one: Setting) -> int:
        """Tokens that a candidate reads of a text."""
        return self.task.trained if one.truncated else self.task.to

    def expected(self, finalists: int, *, per_head: bool, exported: bool) -> int:
        """The cost of the work that the record does not have yet."""
        model, task, record = self.model, self.task, self.record
        positions = len(kinds.of_positions(model, task))
        probed = positions + 4 + per_head - len(record.screened)
        fits = (ENTROPY + PARABOLA) * self._probed(self.probe.fit)
        if per_head:
            row = self.probe.on(self.probe.rows[:1])
            fits += BACKWARD * temperatures.STEPS * self._probed(row)
        fitted = any("fitted" in name for name in self._names())
        short = max(0, probed) * self._probed(self.probe.judge) + (0 if fitted else fits)
        others = 0 if exported else len(kinds.clipping(model, task)) + len(kinds.windows(task))
        first, texts = max(1, len(self.texts) // 3), len(self.texts)
        retrieves = self._retrieves(exported=exported)
        if retrieves and not any(RETRIEVAL in name for name in self._names()):
            short += self._fit_cost() + 2 * self._probed(self.probe.judge)
        families = min(finalists, positions) + (positions > 0) + 1 + 2 * retrieves
        reads = first * (1 + families + others) + (texts - first) * finalists
        whole = max(0, reads - sum(one.candidate != TRUNCATED for one in record.trials))
        cut = texts - len(record.of(TRUNCATED)) + (record.inside is None)
        return short + whole * self._read(task.to) + cut * self._read(task.trained)

    def _probed(self, probe: Probe) -> int:
        return self.cost.of(probe.rows.numel(), length=probe.rows.shape[1])

    def _read(self, length: int) -> int:
        return self.cost.of(length, length=length)

    def _probing(self, times: int, probe: Probe) -> AbstractContextManager[None]:
        work, tokens = times * self._probed(probe), times * probe.rows.numel()
        return counted(self.model, self.listener, work=work, tokens=tokens)

    def _reading(self, length: int) -> AbstractContextManager[None]:
        work = self._read(length)
        return counted(
            self.model, self.listener, work=work, tokens=length, cost=self.cost, length=length
        )

    def _add(self, candidate: Setting) -> None:
        if candidate.name not in self._names():
            self.record.candidates.append(candidate)

    def _names(self) -> list[str]:
        return [one.name for one in self.record.candidates]

    def _ranked(self) -> list[str]:
        """Names by the loss of the probe, the least first."""
        order = sorted(self.record.screened, key=lambda one: one.change.after)
        return [one.candidate for one in order]


def task_of(model: nn.Module, ids: Tensor, *, to: int | None, trained: int | None = None) -> Task:
    """The trained length, the target length, and the heads of each layer that attends.

    Args:
        model: the model.
        ids: tokens [n], of which it reads a few.
        to: the length that it should read; None is twice the trained one.
        trained: the trained length; None asks the model and its config.
    """
    if trained is None:
        known = trained_length(model)
        if known is None:
            rule = "given, for neither the model nor its config says it"
            raise ArgumentError("trained", rule, None)
        trained = known.tokens
    with torch.no_grad(), watch(model).of_all_heads() as seen:
        model(ids[None, :16].to(device_of(model)))
    layers: dict[str, int] = {}
    rows = seen.heads()
    if not all(row.causal for row in rows):
        name = type(model).__name__
        raise UnsupportedError(f"{name} sees the tokens that it would predict: it is not causal")
    for row in rows:
        layers[row.layer] = max(layers.get(row.layer, 0), row.head + 1)
    to = 2 * trained if to is None else to
    return Task(model=type(model).__name__, trained=trained, to=to, layers=layers)


def _begun(done: Record | None, task: Task, ids: Tensor) -> Record:
    """The record to continue, or a new one."""
    digest = hashlib.sha256(ids.numpy().astype("<i8").tobytes()).hexdigest()
    if done is None:
        last = max(1, min(LAST, task.trained // 2, task.to - task.trained))
        return Record(task=task, text=digest, last=last)
    if done.task != task or done.text != digest:
        raise ExtensionError("what was measured before is of another model, length or text")
    return done
