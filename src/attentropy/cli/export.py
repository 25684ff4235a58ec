"""`attentropy export RUN`: every number of a run as a table, one line per step, layer and head."""

import csv
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from attentropy.observe.record import StoredRun


@click.command()
@click.argument("run")
@click.option("--csv", "kind", flag_value="csv", default="csv", help="Comma-separated (default).")
@click.option("--parquet", "kind", flag_value="parquet", help="Parquet; needs pyarrow.")
@click.option(
    "--out", type=click.Path(path_type=Path),
    help="The file; standard output for CSV, RUN.parquet for Parquet if not given.",
)  # fmt: skip
def command(run: str, kind: str, out: Path | None) -> None:
    """Write all numbers of RUN (a name or a file) as a table."""
    from attentropy.observe import record

    try:
        stored = record.read(run)
    except record.RunError as error:
        raise click.ClickException(str(error)) from error
    try:
        if kind == "parquet":
            _parquet(stored, out or Path(f"{stored.name}.parquet"))
        else:
            _csv(stored, out)
    except OSError as error:
        raise click.ClickException(f"cannot write: {error}") from error


def columns(run: "StoredRun") -> list[str]:
    """The header of the table."""
    return ["step", "loss", "layer", "head", *run.metrics]


def lines(run: "StoredRun") -> Iterator[list[Any]]:
    """One line per step, layer and head; a number that does not exist is None."""
    losses = dict(run.losses)
    for i, step in enumerate(run.steps):
        for j, layer in enumerate(run.layers):
            for head in range(run.heads[j]):
                numbers = (table[i][j][head] for table in run.metrics.values())
                known = (n if math.isfinite(n) else None for n in numbers)
                yield [step, losses.get(step), layer, head, *known]


def _csv(run: "StoredRun", out: Path | None) -> None:
    file = sys.stdout if out is None else out.open("w", encoding="utf-8", newline="")
    try:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns(run))
        writer.writerows(lines(run))
    finally:
        if out is not None:
            file.close()


def _parquet(run: "StoredRun", out: Path) -> None:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        text = "--parquet needs pyarrow: pip install attentropy[parquet]"
        raise click.ClickException(text) from error
    names = columns(run)
    values = list(zip(*lines(run), strict=True)) or [()] * len(names)
    table = pyarrow.table({name: list(column) for name, column in zip(names, values, strict=True)})
    parquet.write_table(table, out)
    click.echo(f"{out}: {table.num_rows} lines", err=True)
