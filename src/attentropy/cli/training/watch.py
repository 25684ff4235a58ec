"""`attentropy watch RUN`: a training run in the terminal, as it goes on."""

import json
import math
import time
from typing import TYPE_CHECKING, Any

import click

from attentropy.core.language.speaking import told

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

    from attentropy.core.statistic import Statistic
    from attentropy.training.runstore import StoredRun

BARS = "▁▂▃▄▅▆▇█"


@click.command()
@click.argument("run")
@click.option("--once", is_flag=True, help="Show the table once, then stop.")
@click.option("--every", default=2.0, show_default=True, type=click.FloatRange(0.01),
              help="Seconds between updates.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the newest sample as JSON, then stop.")
def command(run: str, once: bool, every: float, as_json: bool) -> None:
    """Follow RUN (a name or a file) in a live table; Ctrl-C ends it."""
    from attentropy.training import runstore

    stored = runstore.read(run, last=64)
    if as_json:
        click.echo(json.dumps(newest(stored)))
        return
    try:
        _follow(run, stored, once=once, every=every)
    except KeyboardInterrupt:
        click.echo("")


def newest(run: "StoredRun") -> dict[str, Any]:
    """The newest sample as plain data; numbers that do not exist are null."""
    tables = {
        name: [[n if math.isfinite(n) else None for n in layer] for layer in table[-1]]
        for name, table in run.metrics.items()
        if table
    }
    return {
        "run": run.name,
        "running": run.running,
        "step": run.steps[-1] if run.steps else None,
        "layers": run.layers,
        "statistics": tables,
        "alerts": [
            {"step": one.step, "name": one.name, "severity": one.severity, "text": one.text}
            for one in run.alerts
        ],
    }


def _follow(run: str, stored: "StoredRun", *, once: bool, every: float) -> None:
    from rich.console import Console
    from rich.live import Live

    from attentropy.training import runstore

    console = Console()
    if once:
        console.print(view(stored, width=console.width))
        return
    with Live(view(stored, width=console.width), console=console, auto_refresh=False) as live:
        while stored.running:
            time.sleep(every)
            stored = runstore.read(run, last=64)
            live.update(view(stored, width=console.width), refresh=True)


def view(run: "StoredRun", *, width: int) -> "Group":
    """The newest sample by layer, the course of the whole, and the latest alarms.

    Args:
        run: what was read.
        width: columns of the terminal; statistics that do not fit beside others stand below them.
    """
    from rich.console import Group
    from rich.text import Text

    from attentropy.core.statistics import TABLE
    from attentropy.training.episodes import episodes_of

    state = "running" if run.running else "ended"
    step = f"step {run.steps[-1]}" if run.steps else "nothing recorded yet"
    loss = f", loss {run.losses[-1][1]:.4g}" if run.losses else ""
    parts: list[Any] = [Text(told(f"{run.name}: {state}, {step}{loss}"), style="bold")]
    if run.steps:
        shown = [one for one in TABLE.values() if "mean" in one.logged]
        parts += _tables(run, shown, width)
    for one in episodes_of(run)[-5:]:
        style = "red" if one.severity == "critical" else "yellow"
        parts.append(Text(told(f"{one.steps}: {one.text}"), style=style))
    return Group(*parts)


NUMBER, LEAST, MOST, EDGE = 7, 6, 16, 3
"""Columns of a number, of the shortest and the longest course, and between two cells."""


def _tables(run: "StoredRun", shown: "list[Statistic]", width: int) -> "list[Table]":
    """As many statistics side by side as have room for a number and its course."""
    from rich.table import Column, Table

    layers = [_end(layer, max(8, width // 3)) for layer in run.layers]
    room = width - max(map(len, layers), default=0) - EDGE - 1
    beside = min(len(shown), max(1, room // (NUMBER + 1 + LEAST + EDGE)))
    bars = max(1, min(MOST, room // beside - NUMBER - 1 - EDGE))
    tables = []
    for first in range(0, len(shown), beside):
        some = shown[first : first + beside]
        titles = (Column(told(one.label).lower(), max_width=NUMBER + 1 + bars) for one in some)
        table = Table(Column(told("layer"), no_wrap=True), *titles)
        for i, layer in enumerate(layers):
            table.add_row(layer, *(_cell(run.metrics[one.name], i, bars) for one in some))
        tables.append(table)
    return tables


def _end(text: str, most: int) -> str:
    """The end of a text that is too long: layers differ there.

    >>> _end("model.layers.11.self_attn", 16)
    '…rs.11.self_attn'
    """
    return text if len(text) <= most else f"…{text[1 - most :]}"


def _cell(tables: list[list[list[float]]], layer: int, bars: int) -> str:
    """Mean over the heads of a layer now, and the newest end of its course."""
    course = [_mean(table[layer]) for table in tables]
    return f"{course[-1]:{NUMBER}.3g} {spark(course[-bars:])}"


def _mean(values: list[float]) -> float:
    known = [v for v in values if math.isfinite(v)]
    return sum(known) / len(known) if known else math.nan


def spark(values: list[float]) -> str:
    """A line of bars, lowest to highest.

    >>> spark([0, 1, 2, 3])
    '▁▃▅█'
    """
    known = [v for v in values if math.isfinite(v)]
    low, high = min(known, default=0.0), max(known, default=0.0)
    width = (high - low) or 1.0
    return "".join(
        BARS[int((v - low) / width * (len(BARS) - 1))] if math.isfinite(v) else " " for v in values
    )
