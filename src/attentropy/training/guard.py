"""Guard: a logger that fails never stops a training run.

If the disk is full or missing, the write is tried again at the next sample, with one warning;
loggers that can store gaps store this one. A logger that raises any other error is not called
again.
"""

import sqlite3
import warnings
from collections.abc import Callable
from typing import Any

from attentropy.training.loggers import Logger

PASSING = (OSError, sqlite3.OperationalError)
"""Failures that may pass: no room, no permission, a lock, a disk that is away."""


class Guard:
    """Calls a logger, and turns its exceptions into one warning.

    Args:
        logger: a callable (metrics, step); it may have `loss(step, loss)`, `gap(first, last,
            reason)` and `close()`.

    Attributes:
        logger: the logger.
        dropped: True once it is not called any more.
    """

    def __init__(self, logger: Logger) -> None:
        self.logger, self.dropped = logger, False
        self._missing: tuple[int, int, str] | None = None

    def write(self, metrics: dict[str, Any], step: int) -> None:
        """Give the logger a sample.

        Args:
            metrics: of the sample.
            step: its step.
        """
        self._try(step, lambda: self.logger(metrics, step))

    def loss(self, step: int, loss: float) -> None:
        """Give the logger a loss between samples, if it takes them.

        Args:
            step: the training step.
            loss: its loss.
        """
        take = getattr(self.logger, "loss", None)
        if take is not None:
            self._try(step, lambda: take(step, loss))

    def close(self) -> None:
        """Close the logger, if it can be closed."""
        close = getattr(self.logger, "close", None)
        if close is not None and not self.dropped:
            try:
                close()
            except Exception as error:
                self._warn(f"could not be closed: {error!r}")

    def _try(self, step: int, write: Callable[[], None]) -> None:
        if self.dropped:
            return
        try:
            write()
            self._mark()
        except PASSING as error:
            if self._missing is None:
                self._warn(f"cannot write step {step} ({error}); it is tried again at the next one")
            first = step if self._missing is None else self._missing[0]
            self._missing = (first, step, str(error))
        except Exception as error:
            self.dropped = True
            self._warn(f"failed and is not called again: {error!r}")

    def _mark(self) -> None:
        """Note the steps that were not written, now that writing works again."""
        if self._missing is None:
            return
        gap = getattr(self.logger, "gap", None)
        if gap is not None:
            gap(*self._missing)
        self._missing = None

    def _warn(self, what: str) -> None:
        text = f"attentropy: {self.logger!r} {what}; training goes on"
        warnings.warn(text, RuntimeWarning, stacklevel=2)
