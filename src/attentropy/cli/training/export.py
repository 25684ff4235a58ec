"""`attentropy export RUN`: every number of a run as a table, one line per step, layer and head."""

import csv
import json
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from attentropy.cli.failures import check_file, needs, writing

if TYPE_CHECKING:
    from attentropy.training.runstore import StoredRun

ENDINGS = {".json": "json", ".parquet": "parquet"}


@click.command()
@click.argument("run")
@click.option("--json", "kind", flag_value="json", help="A JSON list, one object per line of it.")
@click.option("--csv", "kind", flag_value="csv", help="Comma-separated (default).")
@click.option("--parquet", "kind", flag_value="parquet", help="Parquet; needs pyarrow.")
@click.option(
    "--out", type=click.Path(path_type=Path),
    help="The file, whose ending .json or .parquet says the form too; if not given "
    "RUN.parquet for Parquet, else standard output.",
)  # fmt: skip
def command(run: str, kind: str | None, out: Path | None) -> None:
    """Write all numbers of RUN (a name or a file) as a table."""
    from attentropy.training import runstore

    kind = kind or ENDINGS.get("" if out is None else out.suffix, "csv")
    if kind == "parquet":
        needs("--parquet", "parquet", "pyarrow")
    check_file(out)
    stored = runstore.read(run)
    if kind == "parquet":
        out = out or Path(f"{stored.name}.parquet")
    with writing(out):
        if kind == "parquet" and out is not None:
            _parquet(stored, out)
        else:
            _text(stored, out, _json if kind == "json" else _csv)


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


def _text(run: "StoredRun", out: Path | None, write: "Callable[[StoredRun, TextIO], None]") -> None:
    if out is None:
        write(run, sys.stdout)
        return
    with out.open("w", encoding="utf-8", newline="") as file:
        write(run, file)


def _csv(run: "StoredRun", file: TextIO) -> None:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns(run))
    writer.writerows(lines(run))


def _json(run: "StoredRun", file: TextIO) -> None:
    names = columns(run)
    separator = "["
    for line in lines(run):
        file.write(separator + json.dumps(dict(zip(names, line, strict=True))))
        separator = ",\n"
    file.write("]\n" if separator != "[" else "[]\n")


def _parquet(run: "StoredRun", out: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    names = columns(run)
    values = list(zip(*lines(run), strict=True)) or [()] * len(names)
    table = pyarrow.table({name: list(column) for name, column in zip(names, values, strict=True)})
    parquet.write_table(table, out)
    click.echo(f"{out}: {table.num_rows} lines", err=True)
