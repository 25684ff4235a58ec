"""Lightning: `Trainer(callbacks=[AttentionCallback(every=50)])`.

The numbers are logged through `self.log`, so that EarlyStopping and ModelCheckpoint can monitor
them by name, such as "attn/entropy/mean". Every logger of the Trainer gets them at the steps that
were sampled, which `log_every_n_steps` would skip. Serves both `lightning.pytorch` and
`pytorch_lightning`, whichever is in use.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from types import EllipsisType
from typing import Any

from torch import Tensor, tensor

from attentropy.training.alarms import Alarm
from attentropy.training.loggers import Logger, by_old_name
from attentropy.training.monitor import Monitor


def _base() -> Any:
    names = ("lightning.pytorch", "pytorch_lightning")
    for name in sorted(names, key=lambda name: name not in sys.modules):
        try:
            return import_module(name).Callback
        except ImportError:
            continue
    raise ImportError(
        "attentropy.training.callbacks.lightning needs lightning: pip install attentropy[lightning]"
    )


class AttentionCallback(_base()):  # type: ignore[misc]
    """Samples one training batch in `every`; arguments are those of Monitor.

    An alarm whose action is `stop` ends the training.

    Args:
        every: one training batch in so many is sampled, the first included.
        loggers: callables (metrics, step); none by default, because the loggers of the Trainer
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
        super().__init__()
        self.options: dict[str, Any] = {
            "every": every, "loggers": by_old_name(loggers, sinks), "alarms": alarms,
            "worst": worst, "name": name,
        }  # fmt: skip
        self.monitor: Monitor | None = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Start to monitor the module."""
        self.monitor = Monitor(pl_module, **self.options)
        self.monitor.pause()

    def on_train_batch_start(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        """Start listening, if this batch is sampled."""
        if self.monitor is not None:
            self.monitor.begin()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, *_: Any) -> None:
        """Take the sample, and log it."""
        if self.monitor is None:
            return
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        number = loss if isinstance(loss, Tensor) else None
        metrics = self.monitor.step(number, step=trainer.global_step)
        self.monitor.pause()
        if metrics is not None:
            self._log(trainer, dict(metrics))
        if self.monitor.should_stop:
            trainer.should_stop = True

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Restore the model."""
        if self.monitor is not None:
            self.monitor.close()

    def _log(self, trainer: Any, metrics: dict[str, float]) -> None:
        """Give a sample to the trainer's callbacks and loggers."""
        self.log_dict(metrics, on_step=True, on_epoch=False, logger=False)
        trainer.logged_metrics.update({name: tensor(value) for name, value in metrics.items()})
        for logger in trainer.loggers:
            logger.log_metrics(metrics, step=trainer.global_step)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Restore the model after an error."""
        self.on_train_end(trainer, pl_module)
