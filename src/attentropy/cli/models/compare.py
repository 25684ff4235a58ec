"""`attentropy compare`: scans that are there already, side by side as one HTML file."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from attentropy.cli.failures import CalledWrongly

if TYPE_CHECKING:
    from attentropy.report.comparison import NamedScan

MOST = 12
"""Heads that the summary names."""


@click.command()
@click.argument(
    "scans", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="A B [C ...]"
)
@click.option("--out", default="attentropy-compare", show_default=True, metavar="DIR",
              type=click.Path(path_type=Path), help="Where compare.html goes.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print only JSON on stdout.")
def command(scans: tuple[Path, ...], out: Path, as_json: bool) -> None:
    """Compare scans, head by head, without running a model.

    A, B, C are folders of `attentropy scan` or scan.json files, the first one is what others are
    compared with.
    """
    from attentropy.report import comparison_page
    from attentropy.scans.store import prepared, write_atomically

    if len(scans) < 2:
        raise CalledWrongly(f"compare needs two scans or more, got {len(scans)}")
    found = _loaded(scans)
    page = out / "compare.html"
    with prepared(out):
        write_atomically(page, comparison_page(found))
    summary = machine(found, page)
    if as_json:
        click.echo(json.dumps(summary, allow_nan=False))
        return
    for one in summary["changes"][:3]:
        click.echo(
            f"layer {one['layer']} head {one['head']}: entropy {one['before']:.3g} -> "
            f"{one['after']:.3g} nats"
        )
    click.echo(f"Compare: {page}")


def _loaded(paths: tuple[Path, ...]) -> "list[NamedScan]":
    from attentropy.report.comparison import NamedScan, unique_names
    from attentropy.scans.store import load

    scans = [load(path) for path in paths]
    homes = [path if path.is_dir() or path.name != "scan.json" else path.parent for path in paths]
    folders = [home.resolve().stem if home.is_file() else home.resolve().name for home in homes]
    names = unique_names([scan.model.name for scan in scans], folders)
    return [NamedScan(name, scan) for name, scan in zip(names, scans, strict=True)]


def machine(scans: "list[NamedScan]", page: Path) -> dict[str, Any]:
    """The summary for programs: the first scan against the last, by entropy.

    Args:
        scans: what is compared.
        page: the file that was written.
    """
    from attentropy.report.comparison import common_length, head_changes

    first, last = scans[0].scan, scans[-1].scan
    return {
        "compare": str(page),
        "scans": [one.name for one in scans],
        "length": common_length([one.scan for one in scans]),
        "statistic": "entropy",
        "changes": [
            {**one._asdict(), "change": one.change} for one in head_changes(first, last)[:MOST]
        ],
    }
