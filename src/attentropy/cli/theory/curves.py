"""`attentropy curves`: the figures of the theory, with their numbers."""

import json
from pathlib import Path

import click

from attentropy.cli.failures import needs
from attentropy.core.language.speaking import told


@click.command()
@click.option(
    "--out", default="curves", show_default=True, metavar="DIR", help="Where the results go.",
    type=click.Path(path_type=Path, file_okay=False),
)  # fmt: skip
@click.option("--only", multiple=True, help="Only this figure; repeatable. Names: see --list.")
@click.option("--list", "list_", is_flag=True, help="List the figures and stop.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON only.")
def command(out: Path, only: tuple[str, ...], list_: bool, as_json: bool) -> None:
    """Write each figure as PNG and SVG, and the numbers it shows as CSV."""
    from attentropy.report.curves import FIGURES, write

    if list_ and as_json:
        rows = [{"name": name, "title": figure.title} for name, figure in FIGURES.items()]
        click.echo(json.dumps(rows))
        return
    if list_:
        for name, figure in FIGURES.items():
            click.echo(f"{name:26} {told(figure.title)}")
        return
    unknown = sorted(set(only) - set(FIGURES))
    if unknown:
        raise click.UsageError(f"no figure {', '.join(unknown)}; see --list")
    needs("attentropy curves", "figures", "matplotlib")
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    chosen = [FIGURES[name] for name in only or FIGURES]
    shown = track(
        chosen, told("drawing"), console=console, transient=True, disable=not console.is_terminal
    )
    written = {figure.name: [str(path) for path in write(figure, out)] for figure in shown}
    if as_json:
        click.echo(json.dumps(written))
        return
    for paths in written.values():
        click.echo("\n".join(paths))
