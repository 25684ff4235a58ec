"""Monitor: the attention of a model while it trains, in the logs that people already read.

    monitor = at.Monitor(model, every=50)
    for batch in loader:
        loss = model(**batch).loss
        loss.backward(); optimizer.step(); optimizer.zero_grad()
        monitor.step(loss=loss)
        if monitor.should_stop:
            break
    monitor.close()

Between samples the model is not touched. Only forward passes in training mode count, so evaluations
in between are left out. Under torch.distributed every process calls step(); one small collective
adds up the numbers of all, and nothing waits for it: a sample is reported at the next step. The
first process writes. All processes evaluate the alarms, with the same rows and the mean loss, so
that `should_stop` is the same everywhere at the same step, and a change such as clip() is made
everywhere. If a process fails, no half of a sample remains.
"""

import warnings
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from numbers import Real
from types import EllipsisType, TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from attentropy.core.errors import ArgumentError, ArgumentTypeError
from attentropy.core.statistics import HeadRow
from attentropy.distributed.reduce import Totals
from attentropy.models.record.recorder import listed
from attentropy.models.record.reduce import GroupSample, Shared, tensor_parallel_of
from attentropy.models.watch import Watch
from attentropy.training.alarms import DEFAULT, Alarm, Alert
from attentropy.training.guard import Guard
from attentropy.training.loggers import Logger, by_old_name
from attentropy.training.metrics import Metrics, summarize
from attentropy.training.ringing import Ringing
from attentropy.training.runstore import RunStore
from attentropy.training.samples import History, Sample

FIRST, LATEST = 3, 6  # samples that are kept at least, of the start and of the end of a run
ALL = "all"  # stands for the heads of an alert that names none


def _number(loss: float | Tensor | None) -> float | None:
    if loss is None:
        return None
    one = loss.numel() == 1 if isinstance(loss, Tensor) else isinstance(loss, Real)
    if not one:
        got = list(loss.shape) if isinstance(loss, Tensor) else repr(loss)
        raise ArgumentTypeError("loss", "a number, or a tensor of one", got)
    return float(loss.detach()) if isinstance(loss, Tensor) else float(loss)


class Monitor:
    """Samples one training step in `every`, and passes the sample to loggers and alarms.

    Args:
        model: what is trained; the module whose forward is called, wrapped or not.
        every: one training step in so many is sampled, the first included.
        loggers: callables (metrics, step) such as those of attentropy.training.loggers; by
            default one run store in the directory of runs.
        alarms: values of attentropy.training.alarms; by default all of them, each warning.
        worst: how many of the worst heads are logged one by one.
        name: the name of the run, for the default store.
        sinks: the old name of `loggers`; gives a DeprecationWarning.

    Attributes:
        history: the first and the latest samples, as many as the alarms look at: memory does not
            grow with the run.
        alerts: every alert so far.
        should_stop: True once an alarm asked the training to stop.
        changes: what actions changed, each with `undo()`.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        every: int = 50,
        loggers: Sequence[Logger] | None = None,
        alarms: Sequence[Alarm] | None = None,
        worst: int = 5,
        name: str | None = None,
        sinks: Sequence[Logger] | EllipsisType | None = ...,
    ) -> None:
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise ArgumentError("every", "an integer >= 1", repr(every))
        loggers = by_old_name(loggers, sinks)
        for logger in loggers or ():
            if not callable(logger):
                raise ArgumentTypeError("loggers", "callables (metrics, step)", repr(logger))
        for alarm in alarms or ():
            if isinstance(alarm, type) or not hasattr(alarm, "listen"):
                rule = "values of attentropy.training.alarms"
                raise ArgumentTypeError("alarms", rule, repr(alarm))
        self.model, self.every, self.worst = model, every, worst
        self.watch = Watch(model)
        self.watch.recorder.training_only = True
        self._guards = [Guard(logger) for logger in self._chosen(loggers, name)]
        self.alarms = tuple(DEFAULT if alarms is None else alarms)
        self.history = History(
            first=_most(self.alarms, "base", FIRST), latest=_most(self.alarms, "window", LATEST)
        )
        self.alerts: list[Alert] = []
        self.changes: list[Any] = []
        self.should_stop = False
        self.steps = 0
        self._ringing = [Ringing() for _ in self.alarms]
        self._silent = 0
        self._shared: Shared | None = None
        self._pending: tuple[int, GroupSample] | None = None
        self.begin()

    @property
    def loggers(self) -> list[Logger]:
        """The loggers in use; a logger that raised an error is left out."""
        return [guard.logger for guard in self._guards if not guard.dropped]

    def begin(self) -> None:
        """Start listening if the coming step is sampled; step() does this by itself."""
        if self.steps % self.every == 0 and not self.watch.running:
            self.watch.clear()
            self.watch.start()

    def pause(self) -> None:
        """Leave the model alone until begin() is called again."""
        self.watch.stop()

    def step(
        self, loss: float | Tensor | None = None, *, step: int | None = None
    ) -> Metrics | None:
        """End a training step. Returns the metrics if the step was sampled.

        Under torch.distributed the metrics of a step are returned at the next one.

        Args:
            loss: the loss of the step, for the loggers and alarms.
            step: the number to log; the number of calls so far if it is not given.
        """
        number = self.steps if step is None else step
        value = _number(loss)
        metrics = self._arrived()
        if self.watch.running:
            self.watch.stop()
            metrics = self._sample(number, value) or metrics
        elif value is not None:
            self.note_loss(number, value)
        self.steps += 1
        self.begin()
        return metrics

    @property
    def is_first(self) -> bool:
        """True in the process that writes and warns."""
        return not _is_distributed() or torch.distributed.get_rank() == 0

    def note_loss(self, step: int, loss: float) -> None:
        """Give a loss to the loggers that take losses between samples.

        Args:
            step: the training step.
            loss: its loss.
        """
        if self.is_first:
            for guard in self._guards:
                guard.loss(step, loss)

    def close(self) -> None:
        """Stop listening, and close the loggers."""
        self.watch.stop()
        self._arrived()
        for guard in self._guards:
            guard.close()
        self._guards = []

    def __enter__(self) -> "Monitor":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self._pending = None  # others may never send theirs, and the error must not wait
            if self._shared is not None:
                self._shared.reducer.tell(error)
        self.close()

    def _chosen(self, loggers: Sequence[Logger] | None, name: str | None) -> list[Logger]:
        if loggers is not None:
            return list(loggers)
        notes = {"model": type(self.model).__name__, "every": self.every}
        return [RunStore(name, notes=notes)] if self.is_first else []

    def _sample(self, step: int, loss: float | None) -> Metrics | None:
        if _is_distributed():
            if self._shared is None:
                beside = tensor_parallel_of(self.model)
                self._shared = Shared(self.watch.recorder.owners, tensor_parallel=beside)
            self._pending = step, self._shared.start(_beside(loss, stop=self.should_stop))
            self.watch.clear()
            return None
        rows = self.watch.heads() if self.watch.places() else []
        self.watch.clear()
        return self._told(step, loss, rows)

    def _arrived(self) -> Metrics | None:
        """Tell of the sample that was on its way, if there is one."""
        if self._pending is None:
            return None
        (step, sample), self._pending = self._pending, None
        total, stops = sample.whole.sums.get("loss"), sample.whole.sums["stop"]
        loss = None if total is None else float(total[0] / total[1])
        self.should_stop = self.should_stop or bool(stops)
        return self._told(step, loss, sample.heads())

    def _told(self, step: int, loss: float | None, rows: list[HeadRow]) -> Metrics | None:
        if not rows:
            self._warn_if_silent()
            return None
        sample = Sample(step, tuple(rows), loss)
        self.history.append(sample)
        alerts = self._listen()
        if self._shared is not None and alerts:  # heard by all: an action may be of one process
            self.should_stop = self._shared.any(self.should_stop)
        scalars = summarize(sample.columns, worst=self.worst)
        metrics = Metrics(scalars, rows=rows, alerts=alerts, loss=loss)
        if self.is_first:
            for guard in self._guards:
                guard.write(metrics, step)
        return metrics

    def _listen(self) -> list[Alert]:
        """Alerts of heads that were not reported before."""
        heard = []
        for alarm, ringing in zip(self.alarms, self._ringing, strict=True):
            alert = alarm.listen(self.history)
            heads = () if alert is None else alert.heads or (ALL,)
            news = ringing.news(heads)
            if news and len(news) < len(heads):
                alert = alarm.listen(_only(self.history, news))
            if news and alert is not None:
                heard.append(alert)
                self.alerts.append(alert)
                alarm.action(alert, self)
        return heard

    def _warn_if_silent(self) -> None:
        self._silent += 1
        if self._silent == 1:
            missed = self.watch.recorder.missed
            why = "is the model in training mode, and is it the module that is called?"
            why = listed(missed) if missed else why
            text = (
                f"attentropy: a training step was sampled, but no attention was seen in it; {why}"
            )
            warnings.warn(text, RuntimeWarning, stacklevel=2)


def _beside(loss: float | None, *, stop: bool) -> Totals:
    """What travels with the rows of a sample."""
    sums = {"stop": torch.tensor(float(stop), dtype=torch.float64, device="cpu")}
    if loss is not None:
        sums["loss"] = torch.tensor([loss, 1.0], dtype=torch.float64, device="cpu")
    return Totals(sums)


def _most(alarms: Iterable[Alarm], name: str, least: int) -> int:
    """The largest value of an attribute that alarms may have."""
    return max([least, *(getattr(alarm, name, 0) for alarm in alarms)])


def _only(history: History, heads: Collection[Any]) -> list[Sample]:
    """The history, with some heads of the newest sample."""
    *before, now = history
    rows = tuple(row for row in now.rows if (row.index, row.head) in heads)
    return [*before, replace(now, rows=rows)]


def _is_distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()
