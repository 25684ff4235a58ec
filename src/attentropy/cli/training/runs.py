"""`attentropy runs`: the training runs that monitors have recorded."""

import json
from pathlib import Path

import click


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
        click.echo(f"no runs in {place}")
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


def _print(found: list[dict[str, object]]) -> None:
    from rich.console import Console
    from rich.table import Column, Table

    table = Table(Column("run", overflow="fold", min_width=12), "started", "state", "step", "loss", "layers", "heads", "alerts")
    for line in found:
        if "error" in line:
            table.add_row(str(line["run"]), "", str(line["error"]))
            continue
        loss = line["loss"]
        table.add_row(
            str(line["run"]),
            str(line["started"]),
            "running" if line["running"] else "ended",
            str(line["step"]),
            f"{loss:.4g}" if isinstance(loss, float) else "",
            *(str(line[name]) for name in ("layers", "heads", "alerts")),
        )
    Console().print(table)
