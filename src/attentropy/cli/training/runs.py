"""`attentropy runs`: the training runs that monitors have recorded."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from attentropy.core.language.speaking import told

if TYPE_CHECKING:
    from rich.table import Table


@click.command()
@click.option(
    "--dir", "folder", type=click.Path(path_type=Path, file_okay=False),
    help="Where to look; ATTENTROPY_RUNS or ./attentropy_runs by default.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON only.")
def command(folder: Path | None, as_json: bool) -> None:
    """List recorded runs, the newest first."""
    from attentropy.training import runstore

    place = runstore.directory() if folder is None else folder
    found = [_line(path) for path in runstore.runs(place)]
    if as_json:
        click.echo(json.dumps(found))
    elif not found:
        click.echo(told(f"no runs in {place}"))
    else:
        _print(found)


def _line(path: Path) -> dict[str, object]:
    from attentropy.training import runstore

    try:
        run = runstore.read(path, last=1)
    except runstore.RunError as error:
        return {"run": path.stem, "error": str(error)}
    return {
        "run": path.stem,
        "path": str(path),
        "started": run.started,
        "running": run.running,
        "step": run.steps[-1] if run.steps else None,
        "loss": run.losses[-1][1] if run.losses else None,
        "layers": len(run.layers),
        "heads": sum(run.heads),
        "alerts": len(run.alerts),
    }


LEAST_IMPORTANT = ("layers", "heads", "started", "loss", "alerts", "step", "state")
"""Columns that a narrow terminal goes without, in this order; the name is never cut."""


def _print(found: list[dict[str, object]]) -> None:
    from rich.console import Console
    from rich.measure import Measurement

    console, columns = Console(), ["started", "state", "step", "loss", "layers", "heads", "alerts"]
    unlimited = console.options.update(max_width=10_000)
    table = _table(found, columns)
    for name in LEAST_IMPORTANT:
        if Measurement.get(console, unlimited, table).maximum <= console.width:
            break
        columns.remove(name)
        table = _table(found, columns)
    whole = Measurement.get(console, unlimited, table).maximum
    Console(width=max(console.width, whole)).print(table)
    for line in found:
        if "error" in line:
            click.echo(f"{line['run']}: {line['error']}")


def _table(found: list[dict[str, object]], columns: list[str]) -> "Table":
    from rich.table import Column, Table

    titles = (Column(told(name), no_wrap=True) for name in ("run", *columns))
    table = Table(*titles)
    for line in found:
        table.add_row(str(line["run"]), *(_cell(line, name) for name in columns))
    return table


def _cell(line: dict[str, object], name: str) -> str:
    if "error" in line:
        return told("unreadable") if name == "state" else ""
    if name == "state":
        return told("running" if line["running"] else "ended")
    value = line[name]
    if name == "loss":
        return f"{value:.4g}" if isinstance(value, float) else ""
    return str(value)
