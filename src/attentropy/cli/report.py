"""`attentropy report`: a training run, or a scan again, as one HTML file."""

from pathlib import Path

import click

from attentropy.cli.failures import one_sentence


@click.command()
@click.argument("source", metavar="RUN", type=click.Path(path_type=Path))
@click.option(
    "--out", type=click.Path(path_type=Path), help="The HTML file; beside RUN by default."
)
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def command(source: Path, out: Path | None, debug: bool) -> None:
    """Make the HTML report of RUN: a run store of the Monitor, or a scan.json."""
    with one_sentence(debug=debug):
        target = out or source.with_suffix(".html")
        _write(source, target)
        click.echo(f"Report: {target}")


def _write(source: Path, target: Path) -> None:
    from attentropy.report import run_page, scan_page
    from attentropy.report.runstore import is_run, read_run
    from attentropy.scans.schema import decode
    from attentropy.scans.store import write_atomically

    if not source.is_file():
        raise click.ClickException(f"{source} does not exist or is no file")
    if is_run(source):
        page = run_page(read_run(source))
    else:
        page = scan_page(decode(source.read_bytes(), name=source.name))
    write_atomically(target, page.encode())
