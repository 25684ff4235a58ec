"""`attentropy compare`: scans and runs that are there already, side by side as one HTML file."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from attentropy.cli.failures import CalledWrongly
from attentropy.core.language.speaking import told

if TYPE_CHECKING:
    from attentropy.report.comparison import Compared
    from attentropy.scans.schema import Scan
    from attentropy.training.runstore import StoredRun

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
    """Compare scans or training runs, head by head, without running a model.

    A, B, C are folders of `attentropy scan`, scan.json files, or runs of a Monitor by file or name;
    the others are compared with the first one.
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
            told(
                f"layer {one['layer']} head {one['head']}: entropy {one['before']:.3g} -> "
                f"{one['after']:.3g} nats"
            )
        )
    click.echo(told(f"Compare: {page}"))


def _loaded(paths: tuple[Path, ...]) -> "list[Compared]":
    from attentropy.report.comparison import NamedRun, NamedScan
    from attentropy.report.payload import unique_names
    from attentropy.scans.schema import Scan
    from attentropy.scans.store import folder_name

    found = [_entry(path) for path in paths]
    own = [one.model.name if isinstance(one, Scan) else one.name for one in found]
    names = unique_names(own, [folder_name(path) for path in paths])
    return [
        NamedScan(name, one) if isinstance(one, Scan) else NamedRun(name, one)
        for name, one in zip(names, found, strict=True)
    ]


def _entry(path: Path) -> "Scan | StoredRun":
    """The scan or run that an argument names: a folder, a file, or the name of a run."""
    from attentropy.report.run import NUMBERS
    from attentropy.scans.store import load
    from attentropy.training.runstore import NoSuchRun, find, is_run, read, runs

    if (path / "scan.json").exists():
        return load(path)
    if path.is_dir():
        inside = [one for one in runs(path) if is_run(one)]
        if len(inside) == 1:
            return read(inside[0], most=NUMBERS)
        if inside:
            raise CalledWrongly(
                f"{path} holds {len(inside)} runs: name one, such as {path / inside[0].name}"
            )
    try:
        known = find(path)
    except NoSuchRun:
        return load(path)
    return read(known, most=NUMBERS) if is_run(known) else load(path)


def machine(entries: "list[Compared]", page: Path) -> dict[str, Any]:
    """The summary for programs: the first scan or run against the last, by entropy.

    Args:
        entries: what is compared.
        page: the file that was written.
    """
    from attentropy.report.comparison import NamedScan, common_length, head_changes
    from attentropy.scans.schema import Scan

    found = [one.scan if isinstance(one, NamedScan) else one.run for one in entries]
    changes = head_changes(found[0], found[-1])[:MOST]
    return {
        "compare": str(page),
        "scans": [one.name for one in entries],
        "length": common_length([one for one in found if isinstance(one, Scan)]),
        "statistic": "entropy",
        "changes": [{**one._asdict(), "change": one.change} for one in changes],
    }
