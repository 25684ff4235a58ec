"""scan(model, tokens): every head of a model at several lengths, as one value."""

import datetime
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from attentropy._version import __version__
from attentropy.core.errors import ArgumentError, ArgumentTypeError, AttentropyError
from attentropy.core.notebook.words import plural
from attentropy.distributed.team import ALONE, Team
from attentropy.models.intercept.candidates import device_of
from attentropy.models.losses.cause import Cause
from attentropy.models.losses.lockstep import blocks, grouped, most_tokens
from attentropy.models.losses.reading import has_decoder_beside
from attentropy.models.plan import Plan
from attentropy.models.progress import Amount, Expected, Listener, counted
from attentropy.models.record.coverage import ModuleCoverage
from attentropy.models.record.reduce import tensor_parallel_of
from attentropy.models.tensor_parallel import team_for
from attentropy.scans.errors import ScanError
from attentropy.scans.judging import calibration
from attentropy.scans.judging.breaks import Beyond, stretch_means
from attentropy.scans.judging.judge import concluded, judge
from attentropy.scans.judging.remedies import (
    candidates,
    largest_logit,
    planned,
    tried,
    usual_cause,
)
from attentropy.scans.loading.inputs import Readable, Tokens, of
from attentropy.scans.loading.sources import Placement, describe_model
from attentropy.scans.measuring import lengths as spans
from attentropy.scans.measuring.maps import draw_maps
from attentropy.scans.measuring.measure import Reading, measure_several
from attentropy.scans.schema import Measure, Scan, ScannedModel, ScannedText, Skipped
from attentropy.scans.texts.beginning import beginning

Keep = Callable[[Scan], object]


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Where model and tokens come from, for the record.

    Attributes:
        model: what is scanned.
        text: what it reads.
        command: the command line, if one asked for the scan.
        load: the Python that loads the model.
        label: one token id to text, for the axes of attention maps.
        began: when the work began, by time.perf_counter().
        folder: where plans will be written, for the calls that load them.
    """

    model: ScannedModel
    text: ScannedText
    command: str = ""
    load: str = "model = ..."
    label: Callable[[int], str] = str
    began: float = field(default_factory=time.perf_counter)
    folder: str | None = None


def scan(
    model: nn.Module,
    tokens: Readable,
    *,
    lengths: Sequence[int] | None = None,
    batch: int = 4,
    calibrate: bool = False,
    trained: int | None = None,
    tokens_per_length: int | None = None,
    provenance: Provenance | None = None,
    done: Scan | None = None,
    listener: Listener | None = None,
    keep: Keep | None = None,
    team: Team = ALONE,
) -> Scan:
    """Measure every head of `model` at several lengths, while it reads `tokens` in windows of each.

    Args:
        model: anything that `watch` can watch, called with ids [B, n].
        tokens: ids of tokens (a tensor, an array or a list of integers; the rows of a table
            follow one another), or a string where the model has a `tokenizer` or reads bytes.
        lengths: increasing; by default from 64 up to four times the trained length.
        batch: the number of windows of the longest length in one forward pass.
        calibrate: also find scales that hold the entropy, and measure their effect.
        trained: the length that the model was trained at, where its files do not say it or are
            wrong.
        tokens_per_length: number of tokens read at every length; by default `batch` windows of
            the longest, 8,192 at least.
        provenance: where model and tokens come from, for the record.
        done: a stopped scan of the same model and tokens, whose lengths are not measured again.
        listener: receives the progress of the scan.
        keep: receives the scan so far after every length.
        team: processes that share the work; each has the model and all arguments, and gets the
            whole scan. The first one draws attention maps. None for a model whose heads processes
            share (tensor parallelism): each process calls scan() with all arguments.

    >>> from attentropy.lab.embedded import load_embedded
    >>> found = scan(load_embedded(), "To be, or not to be? " * 40, lengths=[64, 128])
    >>> found.lengths, found.heads, len(found.measures[0].rows)
    ([64, 128], 20, 20)
    """
    _check(model, batch=batch, trained=trained, tokens_per_length=tokens_per_length)
    text = of(tokens, model)
    provenance = provenance or _provenance(model, text)
    if trained is not None:
        provenance.model.trained_length = trained
        provenance.model.trained_source = "as the user says"
    if done is not None:
        _check_same_work(done, provenance)
    team = team_for(model, team)
    for what, value in _work_of(provenance).items():
        team.check_same(what, value)
    about, ids = provenance.model, text.ids
    asked = spans.default(about, len(ids)) if lengths is None else spans.check(lengths)
    wanted, skipped = spans.usable(asked, about, len(ids))
    if calibrate:
        calibration.check(model, about, ids, wanted, skipped)
    windows = spans.Windows.of(
        ids, wanted, batch=batch, budget=tokens_per_length, begin=text.begin, end=text.end
    )
    heard = listener or Listener()
    work = _Work(model, windows, provenance, heard, skipped, calibrate=calibrate, team=team)
    for warning in text.about.warnings:
        work.listener.say(f"beware: {warning}")
    work.measure_all(wanted, done, keep=keep)
    found = work.assemble(complete=True)
    work.listener.stage("drawing attention maps")
    if team.is_first:
        length, label = found.lengths[-1], provenance.label
        found.maps = draw_maps(model, ids[:length], found.layers, label=label)
        found.text = beginning(model, text, label=label, length=length)
    if calibrate:
        found.plan = work.calibrated(found)
    work.conclude(found)
    found.seconds = work.seconds
    return found


@dataclass
class _Work:
    """The model with its text, and what was measured so far."""

    model: nn.Module
    text: spans.Windows
    provenance: Provenance
    listener: Listener
    skipped: list[Skipped]
    calibrate: bool = False
    team: Team = ALONE
    measures: list[Measure] = field(default_factory=list)
    losses: dict[int, Tensor] = field(default_factory=dict)
    met: set[bool] = field(default_factory=set)
    coverage: list[ModuleCoverage] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.costs = spans.ScanCosts(self.model, self.text)
        self.expected = Expected(self.listener)

    @property
    def seconds(self) -> float:
        """How long it took so far."""
        return round(time.perf_counter() - self.provenance.began, 3)

    def measure_all(self, lengths: list[int], done: Scan | None, *, keep: Keep | None) -> None:
        """Measure every length that was not done before; `keep` gets the scan after each."""
        for skip in self.skipped:
            self.listener.say(f"length {skip.length:,} is left out: {skip.reason}")
        known = {measure.length: measure for measure in (done.measures if done else ())}
        self.coverage = done.coverage if done else []
        new = [length for length in lengths if length not in known]
        self.listener.begin(self.costs.windows(*new).work)
        self._expect_beyond(lengths)
        for group in self._together(new):
            self._measure(group)
            self._order(lengths, known)
            if keep is not None and self.measures:
                keep(self.assemble(complete=False))
        self._order(lengths, known)
        if not self.measures:
            reason = self.skipped[-1].reason
            raise ScanError("no length could be measured: {reason}", reason=reason)

    def _together(self, lengths: list[int]) -> list[list[int]]:
        """Lengths that are read side by side: several where weights are read layer by layer."""
        if not blocks(self.model):
            return [[length] for length in lengths]
        sizes = [self.text.rows(length).numel() // self.team.size for length in lengths]
        groups = list(grouped(lengths, sizes, most_tokens(self.model)))
        times = plural(len(groups), "time")
        self.listener.say(f"weights stay on disk: they are read {times} for all lengths")
        return groups

    def _order(self, lengths: list[int], known: dict[int, Measure]) -> None:
        """All measures so far, by length."""
        have = known | {measure.length: measure for measure in self.measures}
        self.measures = [have[length] for length in lengths if length in have]

    def _measure(self, lengths: list[int]) -> None:
        """Measure lengths, or note why the model refuses one of them."""
        self.listener.stage(f"length {', '.join(f'{length:,}' for length in lengths)}")
        try:
            with self._counted(self.costs.windows(*lengths), lengths[-1]):
                cut = [self.text.cut(length) for length in lengths]
                found = measure_several(self.model, cut, team=self.team, met=self.met)
        except AttentropyError:
            raise
        except Exception as error:  # whatever the code of a model raises
            if len(lengths) > 1:
                for length in lengths:
                    self._measure([length])
            else:
                self._refused(lengths[0], error)
            return
        for one in found:
            self._take(one)

    def _take(self, found: Reading) -> None:
        if found.losses is not None:
            self.losses[found.measure.length] = found.losses
            found.measure.stretches = stretch_means(self.text.along(found.losses))
        elif found.measure.loss is None and not self.calibrate:
            self.expected.ends()  # nothing is predicted, so nothing is judged by its loss
        self.measures.append(found.measure)
        self.coverage = found.coverage

    def calibrated(self, scan: Scan) -> Plan:
        """The plan that holds the entropy, with its effects."""
        self.listener.stage("calibrating")
        lengths = calibration.lengths_of(scan.lengths, scan.model.trained_length)
        with self._coming(self.costs.calibrated(lengths), None):
            return calibration.calibrated(self.model, self.text, scan, team=self.team)

    def conclude(self, scan: Scan) -> None:
        """Judge what lies beyond the trained length: where it breaks, why, and what helps."""
        longest, trained = scan.measures[-1], scan.model.trained_length
        known = longest.loss is not None and not self._reads_two()
        if trained is not None and known and longest.length > trained + len(self.text.end):
            self._look_beyond(scan, longest.length, trained)
        judge(scan)
        self.expected.ends()

    def _look_beyond(self, scan: Scan, length: int, trained: int) -> None:
        self.listener.stage(f"beyond {trained:,}, compared with truncation")
        whole = self.losses.get(length)
        with self._coming(self.costs.truncated(length, trained), trained):
            beyond = Beyond(
                self.model, self.text, length, trained=trained, whole=whole, team=self.team
            )
        excess, cause = beyond.excess(), None
        noticed = beyond.noticed_at()
        self.expected.decide(needed=noticed is not None)
        if noticed is not None:
            self.listener.stage("probing distance and number")
            with self._coming(self.costs.probed(length, trained), length):
                cause = beyond.why()
        scan.verdict = concluded(scan, excess=excess, noticed_at=noticed, cause=cause)
        if noticed is not None or scan.plan is not None:
            self.listener.stage("trying remedies")
            self._try(scan, beyond, cause)

    def _try(self, scan: Scan, beyond: Beyond, cause: Cause | None) -> None:
        """Every remedy; a plan that is asked for is offered beside the others, never alone."""
        folder, length = self.provenance.folder, beyond.length
        most, name = largest_logit(scan), None if cause is None else cause.name
        wanted = [
            *candidates(self.model, beyond.trained, length, name, most=most, folder=folder),
            *([] if scan.plan is None else [planned(scan.plan, folder)]),
        ]
        with self._coming(self.costs.windows(length).times(len(wanted)), length):
            scan.remedies = tried(beyond, wanted)

    def _expect_beyond(self, lengths: list[int]) -> None:
        """Tell what comes after the measures for certain, and what comes only if it breaks."""
        trained, length, costs = self.provenance.model.trained_length, lengths[-1], self.costs
        if self.calibrate:
            self.expected.add(costs.calibrated(calibration.lengths_of(lengths, trained)).work)
        if trained is None or length <= trained + len(self.text.end) or self._reads_two():
            return
        self.expected.add(costs.truncated(length, trained).work)
        probes, remedies = costs.probed(length, trained).work, self._remedies(length, trained)
        if self.calibrate:  # then remedies are tried in any case
            self.expected.add(remedies)
            remedies = 0
        self.expected.perhaps(probes + remedies, f"if it breaks past {trained:,}")

    def _remedies(self, length: int, trained: int) -> int:
        """The expected cost of trying remedies, against the usual cause in such a model."""
        wanted = [*candidates(self.model, trained, length, usual_cause(self.model), most=1.0)]
        return (len(wanted) + self.calibrate) * self.costs.windows(length).work

    def _reads_two(self) -> bool:
        """Whether the model reads two texts: nothing beyond the trained length is judged then."""
        return has_decoder_beside(self.model)

    def _coming(self, amount: Amount, length: int | None) -> AbstractContextManager[None]:
        """Tells of work after the measures, expected or not."""
        self.expected.comes(amount.work)
        return self._counted(amount, length)

    def _counted(self, amount: Amount, length: int | None) -> AbstractContextManager[None]:
        """Tells of work that processes share: each reads its part; None for several lengths."""
        own = amount.tokens // self.team.size
        weighed = None if length is None else self.costs.reading
        return counted(
            self.model,
            self.listener,
            work=amount.work,
            tokens=own,
            cost=weighed,
            length=length or 0,
        )

    def _refused(self, length: int, error: Exception) -> None:
        if not self.measures:
            said = f"{type(error).__name__}: {_first_line(error)}"
            text = "the model cannot read {length:,} tokens: {said}"
            raise ScanError(text, length=length, said=said) from error
        reason = f"the model refuses it ({_first_line(error)})"
        self.skipped.append(Skipped(length=length, reason=reason))
        self.listener.say(f"length {length:,} is left out: {reason}")

    def assemble(self, *, complete: bool) -> Scan:
        """What was measured so far as a scan, judged."""
        measured = [measure.length for measure in self.measures]
        load = self.provenance.load
        found = Scan(
            attentropy=__version__,
            torch=str(torch.__version__),
            created=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            seconds=self.seconds,
            threads=torch.get_num_threads(),
            processes=self.team.size * tensor_parallel_of(self.model),
            command=self.provenance.command,
            call=f"import attentropy as at\n{load}\nat.scan(model, tokens, lengths={measured})",
            complete=complete,
            model=self.provenance.model,
            input=self.provenance.text,
            measures=list(self.measures),
            skipped=list(self.skipped),
            slopes=[],
            findings=[],
            advice=[],
            coverage=self.coverage,
        )
        judge(found)
        return found


def _provenance(model: nn.Module, text: Tokens) -> Provenance:
    parameter = next(iter(model.parameters()), None)
    where = Placement()
    if parameter is not None:
        where = replace(Placement.of(parameter), device=str(device_of(model)))
    about = describe_model(model, type(model).__name__, "module", where)
    return Provenance(model=about, text=text.about)


def _check(model: Any, *, batch: Any, **optional: Any) -> None:
    if not isinstance(model, nn.Module):
        raise ArgumentTypeError("model", "a torch.nn.Module", type(model).__name__)
    given = {"batch": batch} | {k: v for k, v in optional.items() if v is not None}
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ArgumentError(name, "an integer >= 1", repr(value))


def _check_same_work(done: Scan, now: Provenance) -> None:
    """Refuse to continue a scan of another model or text."""
    if not isinstance(done, Scan):
        raise ArgumentTypeError("done", "a Scan", type(done).__name__)
    for (what, before), here in zip(_work_of(done).items(), _work_of(now).values(), strict=True):
        if before != here:
            text = "{done}: the stopped scan has another {what}: {before}, not {here}"
            raise ScanError(text, what=what, before=before, here=here)


def _work_of(scan: Scan | Provenance) -> dict[str, str | int]:
    """What makes two scans the same work."""
    text = scan.input if isinstance(scan, Scan) else scan.text
    return {
        "model": scan.model.source,
        "number of parameters": scan.model.parameters,
        "dtype": scan.model.dtype,
        "text": text.sha256,
    }


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
