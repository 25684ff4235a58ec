"""`attentropy watch RUN`: a training run in the terminal, as it goes on."""

import json
import math
import time
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Group

    from attentropy.training.runstore import StoredRun

BARS = "▁▂▃▄▅▆▇█"


@click.command()
@click.argument("run")
@click.option("--once", is_flag=True, help="Show it once, and end.")
@click.option("--every", default=2.0, show_default=True, type=click.FloatRange(0.01),
              help="Seconds between looks.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the newest sample as JSON, and end.")
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

    if once:
        Console().print(view(stored))
        return
    with Live(view(stored), auto_refresh=False) as live:
        while stored.running:
            time.sleep(every)
            stored = runstore.read(run, last=64)
            live.update(view(stored), refresh=True)


def view(run: "StoredRun") -> "Group":
    """The newest sample by layer, the course of the whole, and the latest alarms."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from attentropy.core.statistics import TABLE

    shown = [one for one in TABLE.values() if "mean" in one.logged]
    state = "running" if run.running else "ended"
    step = f"step {run.steps[-1]}" if run.steps else "nothing recorded yet"
    loss = f", loss {run.losses[-1][1]:.4g}" if run.losses else ""
    parts: list[Any] = [Text(f"{run.name}: {state}, {step}{loss}", style="bold")]
    table = Table("layer", *(one.label.lower() for one in shown))
    if run.steps:
        for i, layer in enumerate(run.layers):
            table.add_row(layer, *(_cell(run.metrics[one.name], i) for one in shown))
        parts.append(table)
    for alert in run.alerts[-5:]:
        style = "red" if alert.severity == "critical" else "yellow"
        parts.append(Text(f"step {alert.step}: {alert.text}", style=style))
    return Group(*parts)


def _cell(tables: list[list[list[float]]], layer: int) -> str:
    """Mean over the heads of a layer now, and its course."""
    course = [_mean(table[layer]) for table in tables]
    return f"{course[-1]:7.3g} {spark(course[-16:])}"


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
