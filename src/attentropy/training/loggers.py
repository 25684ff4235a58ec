"""Loggers: what a monitor writes to. Each is a callable (metrics, step).

    JSONLines("run.jsonl")            one line per sample
    TensorBoard("runs/first")         scalars, heat maps of layers by heads, hyperparameters
    Tracker(wandb)                    anything with log(dict, step=...): wandb, trackio

The run store, attentropy.training.runstore.RunStore, is one too. A logger may also have
`loss(step, loss)`, which receives losses between samples, and `close()`.
"""

import json
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import EllipsisType
from typing import Any

from attentropy.core.errors import ArgumentError, ArgumentTypeError
from attentropy.training.pictures import PICTURED, heat_map

Logger = Callable[[dict[str, Any], int], None]

Setting = bool | int | float | str


def by_old_name(
    loggers: Sequence[Logger] | None, sinks: Sequence[Logger] | EllipsisType | None
) -> Sequence[Logger] | None:
    """The loggers, also where they are given by their old name, `sinks`, with a warning.

    Args:
        loggers: what was given by the new name.
        sinks: what was given by the old name; `...` if nothing was.
    """
    if isinstance(sinks, EllipsisType):
        return loggers
    if loggers:
        raise ArgumentError(
            "sinks", "left out where loggers are given: it is their old name", sinks
        )
    text = "sinks is now called loggers: a sink is what attention rests on"
    warnings.warn(text, DeprecationWarning, stacklevel=3)
    return sinks


class JSONLines:
    """Appends one line per sample: step, loss if known, and the metrics; not finite is null."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)

    def __call__(self, metrics: dict[str, Any], step: int) -> None:
        line = {"step": step, **metrics}
        if getattr(metrics, "loss", None) is not None:
            line["loss"] = getattr(metrics, "loss", None)
        alerts = [alert.text for alert in getattr(metrics, "alerts", ())]
        if alerts:
            line["alerts"] = alerts
        plain = {key: _finite(value) for key, value in line.items()}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(plain, allow_nan=False) + "\n")


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


class TensorBoard:
    """Writes scalars, heat maps of layers by heads, alarms and a table of hyperparameters.

    Args:
        writer: a SummaryWriter, or a directory for one.
        hparams: hyperparameters of the run, such as {"lr": 3e-4}; the HParams tab lists them with
            the number of layers and heads, beside the latest means over heads.
    """

    def __init__(self, writer: Any, *, hparams: Mapping[str, Setting] | None = None) -> None:
        for name, value in (hparams or {}).items():
            if not isinstance(value, bool | int | float | str):
                rule = "numbers, texts and booleans by name"
                raise ArgumentTypeError("TensorBoard: hparams", rule, f"{name} = {value!r}")
        if isinstance(writer, str | Path):
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError as error:
                text = "TensorBoard(...) needs tensorboard: pip install attentropy[tensorboard]"
                raise ImportError(text) from error
            writer = SummaryWriter(str(writer))
        if not hasattr(writer, "add_scalar"):
            rule = "a directory or a SummaryWriter"
            raise ArgumentTypeError("TensorBoard: writer", rule, repr(writer))
        self.writer, self.hparams = writer, dict(hparams or {})
        self._end: Any = None

    def __call__(self, metrics: dict[str, Any], step: int) -> None:
        for name, value in metrics.items():
            self.writer.add_scalar(name, value, step)
        rows = getattr(metrics, "rows", ())
        for name, (low, high) in PICTURED.items() if rows else ():
            picture = heat_map(rows, name, low=low, high=high)
            self.writer.add_image(f"attn/heads/{name}", picture, step, dataformats="HWC")
        for alert in getattr(metrics, "alerts", ()):
            self.writer.add_text("attn/alerts", alert.text, step)
        if self._end is None and getattr(self.writer, "file_writer", None) is not None:
            self._summarize(metrics)

    def close(self) -> None:
        """Write what is left."""
        if self._end is not None:
            self.writer.file_writer.add_summary(self._end)
        self.writer.flush()

    def _summarize(self, metrics: dict[str, Any]) -> None:
        """Write the table of hyperparameters; its metrics are scalars that are written anyway."""
        from torch.utils.tensorboard.summary import hparams

        rows = getattr(metrics, "rows", ())
        sizes = {"attn/layers": len({row.index for row in rows}), "attn/heads": len(rows)}
        means = {name: value for name, value in metrics.items() if name.endswith("/mean")}
        *begin, self._end = hparams({**self.hparams, **sizes}, means)
        for summary in begin:
            self.writer.file_writer.add_summary(summary)


class Tracker:
    """Calls `log(metrics, step=step)` of wandb, trackio, one of their runs, or a similar object."""

    def __init__(self, tracker: Any) -> None:
        if not callable(getattr(tracker, "log", None)):
            rule = "something with log(dict, step=...), such as wandb"
            raise ArgumentTypeError("Tracker: tracker", rule, repr(tracker))
        self.tracker = tracker

    def __call__(self, metrics: dict[str, Any], step: int) -> None:
        self.tracker.log(dict(metrics), step=step)
