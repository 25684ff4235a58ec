"""`attentropy export RUN`: every number of a run as a table, one line per step, layer and head."""

import csv
import itertools
import json
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from attentropy.cli.failures import check_file, needs, writing
from attentropy.core.language.speaking import told
from attentropy.core.notebook.words import plural

if TYPE_CHECKING:
    from attentropy.training.runstore import StoredRun

ENDINGS = {".json": "json", ".parquet": "parquet"}
GROUP = 50_000  # lines of a Parquet file that are held in memory


@click.command()
@click.argument("run")
@click.option("--json", "kind", flag_value="json", help="Write a JSON list, one object per line.")
@click.option("--csv", "kind", flag_value="csv", help="Write comma-separated values (default).")
@click.option("--parquet", "kind", flag_value="parquet", help="Write Parquet; needs pyarrow.")
@click.option(
    "--out", type=click.Path(path_type=Path),
    help="The file; its ending .json or .parquet also chooses the format. "
    "By default RUN.parquet for Parquet, else standard output.",
)  # fmt: skip
def command(run: str, kind: str | None, out: Path | None) -> None:
    """Write all numbers of RUN (a name or a file) as a table."""
    from attentropy.training import runstore

    kind = kind or ENDINGS.get("" if out is None else out.suffix, "csv")
    if kind == "parquet":
        needs("--parquet", "parquet", "pyarrow")
    check_file(out)
    stored = runstore.read(run, last=0)
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
    """One line per step, layer and head, read sample by sample; no number is None."""
    from attentropy.training.runstore import samples

    places = [
        (name, h) for name, heads in zip(run.layers, run.heads, strict=True) for h in range(heads)
    ]
    for step, loss, table in samples(run.path):
        for (layer, head), numbers in zip(places, table.T.tolist(), strict=True):
            known = (n if math.isfinite(n) else None for n in numbers)
            yield [step, loss, layer, head, *known]


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

    kinds = {"step": pyarrow.int64(), "layer": pyarrow.string(), "head": pyarrow.int64()}
    names = columns(run)
    schema = pyarrow.schema([(name, kinds.get(name, pyarrow.float64())) for name in names])
    count = 0
    with parquet.ParquetWriter(out, schema) as writer:
        source = lines(run)
        while part := list(itertools.islice(source, GROUP)):
            values = [list(column) for column in zip(*part, strict=True)]
            writer.write_table(pyarrow.table(values, schema=schema))
            count += len(part)
    click.echo(told(f"{out}: {plural(count, 'line')}"), err=True)
