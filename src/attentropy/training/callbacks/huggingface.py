"""The Trainer of transformers: `Trainer(..., callbacks=[AttentionCallback(every=50)])`.

Every sample reaches log_history, the console and every reporter: with the next training loss if
that is logged before the next sample, and by itself if not. Callbacks run after the reporters, and
log_history is filled before them, so the trainer's own `log` is where a sample joins a loss.
"""

import sys
from collections.abc import Sequence
from types import EllipsisType
from typing import Any

from transformers import Trainer, TrainerCallback

from attentropy.training.alarms import Alarm
from attentropy.training.loggers import Logger, by_old_name
from attentropy.training.metrics import Metrics
from attentropy.training.monitor import Monitor


class AttentionCallback(TrainerCallback):
    """Samples one optimizer step in `every`; arguments are those of Monitor.

    An alarm whose action is `stop` ends the training.

    Args:
        every: one optimizer step in so many is sampled, the first included.
        loggers: callables (metrics, step); none by default, because the Trainer's reporters
            get the numbers. Pass None to write a run store too.
        alarms: values of attentropy.training.alarms; by default all of them, each warning.
        worst: how many of the worst heads are logged one by one.
        name: the name of the run, for the run store.
        sinks: the old name of `loggers`; gives a DeprecationWarning.
    """

    def __init__(
        self,
        *,
        every: int = 50,
        loggers: Sequence[Logger] | None = (),
        alarms: Sequence[Alarm] | None = None,
        worst: int = 5,
        name: str | None = None,
        sinks: Sequence[Logger] | EllipsisType | None = ...,
    ) -> None:
        self.options: dict[str, Any] = {
            "every": every, "loggers": by_old_name(loggers, sinks), "alarms": alarms,
            "worst": worst, "name": name,
        }  # fmt: skip
        self.monitor: Monitor | None = None
        self._trainer: Trainer | None = None
        self._pending: Metrics | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start to monitor the model that is trained."""
        self.monitor = Monitor(kwargs["model"], **self.options)
        self.monitor.pause()
        self.monitor.steps = state.global_step
        self._trainer = _trainer_of(self)
        if self._trainer is not None:
            self._join(self._trainer)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start listening, if this step is sampled."""
        if self.monitor is not None:
            self.monitor.steps = state.global_step
            self.monitor.begin()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Take the sample."""
        if self.monitor is None:
            return
        metrics = self.monitor.step(step=state.global_step)
        self.monitor.pause()
        self._pending = metrics if metrics is not None else self._pending
        if not (control.should_log or self._loss_comes(args, state)):
            self._log_pending()
        if self.monitor.should_stop:
            control.should_training_stop = True

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Restore the model and the trainer."""
        if self.monitor is not None:
            self.monitor.close()
        self._log_pending()
        if self._trainer is not None:
            self._trainer.__dict__.pop("log", None)
            self._trainer = None

    def _loss_comes(self, args: Any, state: Any) -> bool:
        """True if the trainer logs a loss before the next sample."""
        if args.logging_strategy != "steps":
            return False
        coming = state.global_step + -state.global_step % state.logging_steps
        return bool(coming <= min(state.max_steps, state.global_step + self.options["every"] - 1))

    def _log_pending(self) -> None:
        if self._trainer is not None and self._pending is not None:
            pending, self._pending = self._pending, None
            self._trainer.log(dict(pending))

    def _join(self, trainer: Trainer) -> None:
        """Add the latest sample to the trainer's next log of a training loss."""
        plain = trainer.log

        def log(logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
            if "loss" in logs and self.monitor is not None:
                self.monitor.note_loss(trainer.state.global_step, logs["loss"])
                if self._pending is not None:
                    logs, self._pending = {**logs, **self._pending}, None
            plain(logs, *args, **kwargs)

        trainer.__dict__["log"] = log


def _trainer_of(callback: TrainerCallback) -> Trainer | None:
    """The trainer that is calling: callbacks receive its state and model, but not the trainer."""
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        owner = frame.f_locals.get("self")
        if isinstance(owner, Trainer) and callback in owner.callback_handler.callbacks:
            return owner
    return None
