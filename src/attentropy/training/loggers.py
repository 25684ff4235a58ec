"""Loggers: what a monitor writes to. Each is a callable (metrics, step).

    JSONLines("run.jsonl")            one line per sample
    TensorBoard("runs/first")         scalars, and an image of layers by heads
    Tracker(wandb)                    anything with log(dict, step=...): wandb, trackio

The run store, attentropy.training.runstore.RunStore, is one too. A logger may also have
`loss(step, loss)`, which is told of losses between samples, and `close()`.
"""

import json
import math
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from types import EllipsisType
from typing import Any

import torch

from attentropy.core.errors import ArgumentError, ArgumentTypeError
from attentropy.core.statistics import TABLE, HeadRow

Logger = Callable[[dict[str, Any], int], None]

IMAGES = {
    name: shades for name, one in TABLE.items() if one.logged and (shades := one.shades) is not None
}
CELL = 12  # pixels of a head in an image


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
    """Writes scalars, and images of layers by heads, to a SummaryWriter or a directory for one."""

    def __init__(self, writer: Any) -> None:
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
        self.writer = writer

    def __call__(self, metrics: dict[str, Any], step: int) -> None:
        for name, value in metrics.items():
            self.writer.add_scalar(name, value, step)
        rows = getattr(metrics, "rows", ())
        for name, (low, high) in IMAGES.items() if rows else ():
            picture = image(rows, name, low=low, high=high)
            self.writer.add_image(f"attn/heads/{name}", picture, step, dataformats="HW")
        for alert in getattr(metrics, "alerts", ()):
            self.writer.add_text("attn/alerts", alert.text, step)

    def close(self) -> None:
        """Write what is left."""
        self.writer.flush()


def image(rows: Sequence[HeadRow], name: str, *, low: float, high: float) -> torch.Tensor:
    """Layers down, heads across: a grey picture [H,W] of a statistic.

    Args:
        rows: the rows of all heads.
        name: the name of the statistic.
        low: the value that is black.
        high: the value that is white.
    """
    places = max(row.index for row in rows) + 1
    heads = max(row.head for row in rows) + 1
    picture = torch.zeros(places, heads)
    for row in rows:
        picture[row.index, row.head] = (row[name] - low) / (high - low)
    picture = picture.nan_to_num(0.0).clamp(0, 1)
    return picture.repeat_interleave(CELL, 0).repeat_interleave(CELL, 1)


class Tracker:
    """Calls `log(metrics, step=step)` of wandb, trackio, one of their runs, or alike."""

    def __init__(self, tracker: Any) -> None:
        if not callable(getattr(tracker, "log", None)):
            rule = "something with log(dict, step=...), such as wandb"
            raise ArgumentTypeError("Tracker: tracker", rule, repr(tracker))
        self.tracker = tracker

    def __call__(self, metrics: dict[str, Any], step: int) -> None:
        self.tracker.log(dict(metrics), step=step)
