"""scan(model, tokens): every head of a model at several lengths, as one value."""

import datetime
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from attentropy._version import __version__
from attentropy.core.errors import AttentropyError
from attentropy.scans.judging.advice import advise
from attentropy.scans.judging.findings import diagnosed
from attentropy.scans.judging.trend import slopes
from attentropy.scans.listener import Listener
from attentropy.scans.loading.inputs import describe_ids
from attentropy.scans.loading.sources import Placement, describe_model
from attentropy.scans.measuring import lengths as spans
from attentropy.scans.measuring.maps import draw_maps
from attentropy.scans.measuring.measure import Found, measure
from attentropy.scans.schema import Input, Layer, Measure, Model, Scan, ScanError, Skipped


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where model and tokens come from, for the record."""

    model: Model
    text: Input
    command: str = ""
    load: str = "model = ..."
    label: Callable[[int], str] = str
    began: float = field(default_factory=time.perf_counter)


@dataclass
class _State:
    layers: list[Layer] = field(default_factory=list)
    measures: list[Measure] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)


def scan(
    model: nn.Module,
    tokens: Tensor,
    *,
    lengths: Sequence[int] | None = None,
    batch: int = 4,
    calibrate: bool = False,
    origin: Origin | None = None,
    done: Scan | None = None,
    listener: Listener | None = None,
    keep: Callable[[Scan], object] | None = None,
) -> Scan:
    """Every head of `model` at several lengths, while it reads `tokens` in windows of each.

    Args:
        model: anything that `watch` can watch, called with ids [B, n].
        tokens: one row of ids.
        lengths: increasing; by default from 64 up to four times the trained length.
        batch: windows of the longest length in one forward pass.
        calibrate: also find scales that hold the entropy, and measure their effect.
        origin: where model and tokens come from, for the record.
        done: a stopped scan of the same model and tokens, whose lengths are not measured again.
        listener: hears how far it is.
        keep: receives the scan so far after every length.
    """
    origin = origin or _origin(model, tokens)
    listener = listener or Listener()
    asked = spans.default(origin.model, len(tokens)) if lengths is None else spans.check(lengths)
    wanted, skipped = spans.usable(asked, origin.model, len(tokens))
    if calibrate:
        from attentropy.scans.judging.calibration import calibrated, check

        check(model, origin.model, tokens, wanted)
    for skip in skipped:
        listener.say(f"length {skip.length:,} is left out: {skip.reason}")
    reader = _Reader(model, spans.Windows.of(tokens, wanted, batch=batch), listener)
    state = _State(skipped=skipped, layers=done.layers if done else [])
    listener.begin(sum(reader.work(length) for length in wanted))
    for length in wanted:
        _one_length(state, reader, length, done)
        if keep is not None and state.measures:
            keep(_assemble(state, origin, complete=False))
    if not state.measures:
        raise ScanError(f"no length could be measured: {state.skipped[-1].reason}")
    found = _assemble(state, origin, complete=True)
    listener.stage("drawing attention maps")
    found.maps = draw_maps(model, tokens[: found.lengths[-1]], found.layers, label=origin.label)
    if calibrate:
        listener.stage("calibrating")
        found.calibration = calibrated(model, reader.text, found)
    found.advice = advise(found)
    found.seconds = round(time.perf_counter() - origin.began, 3)
    return found


@dataclass(frozen=True)
class _Reader:
    """The model with its text, cut into windows of any length."""

    model: nn.Module
    text: spans.Windows
    listener: Listener

    def work(self, length: int, tokens: int | None = None) -> int:
        """Tokens weighed by what they cost: the attention of a token grows with the length."""
        if tokens is None:
            tokens = sum(window.numel() for window in self.text.cut(length))
        return round(tokens * (1 + length / 2048))

    def measure(self, length: int) -> Found:
        self.listener.stage(f"length {length:,}")
        return measure(
            self.model,
            self.text.cut(length),
            tick=lambda tokens: self.listener.advance(self.work(length, tokens)),
        )


def _one_length(state: _State, reader: _Reader, length: int, done: Scan | None) -> None:
    """Measure a length, take it from the stopped scan, or note why the model refuses it."""
    old = next((m for m in done.measures if m.length == length), None) if done else None
    if old is not None:
        state.measures.append(old)
        reader.listener.advance(reader.work(length))
        return
    try:
        found = reader.measure(length)
    except AttentropyError:
        raise
    except Exception as error:  # whatever the code of a model raises
        if not state.measures:
            said = f"{type(error).__name__}: {_first_line(error)}"
            raise ScanError(f"the model cannot read {length:,} tokens: {said}") from error
        reason = f"the model refuses it ({_first_line(error)})"
        state.skipped.append(Skipped(length=length, reason=reason))
        reader.listener.say(f"length {length:,} is left out: {reason}")
        return
    state.measures.append(found.measure)
    state.layers = found.layers


def _assemble(state: _State, origin: Origin, *, complete: bool) -> Scan:
    measured = [measure.length for measure in state.measures]
    found = Scan(
        attentropy=__version__,
        torch=str(torch.__version__),
        created=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        seconds=round(time.perf_counter() - origin.began, 3),
        threads=torch.get_num_threads(),
        command=origin.command,
        call=f"import attentropy as at\n{origin.load}\nat.scan(model, tokens, lengths={measured})",
        complete=complete,
        model=origin.model,
        input=origin.text,
        layers=state.layers,
        lengths=measured,
        measures=state.measures,
        skipped=state.skipped,
        slopes=slopes(state.measures),
        findings=[],
        advice=[],
    )
    found.findings = diagnosed(found)
    return found


def _origin(model: nn.Module, tokens: Tensor) -> Origin:
    parameter = next(iter(model.parameters()), None)
    where = Placement() if parameter is None else Placement.of(parameter)
    about = describe_model(model, type(model).__name__, "module", where)
    text = describe_ids(tokens, description="tokens", files=[], tokenizer="given as ids")
    return Origin(model=about, text=text)


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
