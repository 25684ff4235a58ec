"""`attentropy report`: a training run, or a scan again, as one HTML file."""

import json
from pathlib import Path

import click

from attentropy.cli.failures import check_file, writing
from attentropy.core.language.speaking import told


@click.command()
@click.argument("name", metavar="RUN")
@click.option(
    "--out", type=click.Path(path_type=Path), help="The HTML file; next to RUN by default."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON only.")
def command(name: str, out: Path | None, as_json: bool) -> None:
    """Make the HTML report of RUN: a run of the Monitor by file or name, or a scan.json."""
    target = _write(name, out)
    click.echo(json.dumps({"report": str(target)}) if as_json else told(f"Report: {target}"))


def _write(name: str, out: Path | None) -> Path:
    from attentropy.report import run_page, shelf
    from attentropy.report.run import NUMBERS
    from attentropy.scans.store import load, write_atomically
    from attentropy.training.runstore import find, read

    given = Path(name)
    if given.suffix == ".json" or (given / "scan.json").is_file():
        page = shelf.page_of(load(given), given)
        target = given.with_suffix(".html") if given.is_file() else given / "report.html"
    else:
        found = find(name)
        page = run_page(read(found, most=NUMBERS))
        target = found.with_suffix(".html")
    check_file(out)
    target = out or target
    with writing(target):
        write_atomically(target, page)
    return target
