"""`attentropy scan`: from a model to scan.json and report.html, with a summary on the way."""

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from attentropy.scans.job import Job

DTYPES = ("float32", "bfloat16", "float16", "float64")
FILE = click.Path(path_type=Path)


@click.command()
@click.argument("model", required=False)
@click.option("--text", "texts", multiple=True, type=FILE, help="UTF-8 text to read; repeatable.")
@click.option("--tokens", type=FILE, help="Token ids to read, a .npy file of integers.")
@click.option("--lengths", help="Such as 64,128,256; by default up to 4 times the trained length.")
@click.option("--batch", default=4, show_default=True, type=click.IntRange(1),
              help="Windows of the longest length in a forward pass.")  # fmt: skip
@click.option("--dtype", default="float32", show_default=True, type=click.Choice(DTYPES),
              help="Precision of weights and activations.")  # fmt: skip
@click.option("--device", default="cpu", show_default=True, help="Such as cpu or cuda:0.")
@click.option("--threads", type=click.IntRange(1), help="CPU threads.")
@click.option("--out", default="attentropy-scan", show_default=True, type=FILE, metavar="DIR",
              help="Where the results go.")  # fmt: skip
@click.option("--resume", is_flag=True, help="Go on with the stopped scan in --out.")
@click.option("--compare", type=FILE, help="Another scan.json, to show beside this one.")
@click.option("--calibrate", is_flag=True, help="Also find and try scales that hold the entropy.")
@click.option("--json", "as_json", is_flag=True, help="Print only JSON on stdout.")
@click.option("--allow-pickle", is_flag=True, help="Load pickled weights, which can run code.")
@click.option("--trust-remote-code", is_flag=True, help="Run code that the model folder brings.")
@click.option("--allow-download", is_flag=True, help="Fetch MODEL from the hub if it is not here.")
def command(model: str | None, **options: Any) -> None:
    """Scan MODEL's attention at several lengths and write a report.

    MODEL is a transformers folder, a GGUF file or package.module:factory; without it the small
    model that comes with attentropy is scanned.
    """
    from attentropy.scans.store import prepared

    out: Path = options["out"]
    with prepared(out):
        _scan(model, out, options)


def _scan(model: str | None, out: Path, options: dict[str, Any]) -> None:
    from attentropy.cli.models.scan_summary import machine, progress, show
    from attentropy.report import scan_page
    from attentropy.scans.job import run
    from attentropy.scans.store import load, save, write_atomically

    other = load(options["compare"], argument="--compare") if options["compare"] else None
    job = _job(model, out, options)
    try:
        with progress(quiet=options["as_json"]) as listener:
            scan = run(job, listener, keep=lambda partial: save(out, partial))
    except KeyboardInterrupt:
        if (out / "scan.json").exists():
            click.echo(f"what was measured is in {out / 'scan.json'}; --resume goes on", err=True)
        raise
    if scan.calibration is not None:
        write_atomically(out / "plan.json", json.dumps(scan.calibration.plan, indent=1).encode())
    write_atomically(out / "report.html", scan_page(scan, other).encode())
    save(out, scan)
    if options["as_json"]:
        click.echo(json.dumps(machine(scan, out), allow_nan=False))
    else:
        show(scan, out)


def _job(model: str | None, out: Path, options: dict[str, Any]) -> "Job":
    """What the command line asks for."""
    from attentropy.scans.job import Job
    from attentropy.scans.loading.sources import Permissions
    from attentropy.scans.store import load

    going_on = options["resume"] and (out / "scan.json").exists()
    return Job(
        model=model,
        texts=options["texts"],
        tokens=options["tokens"],
        lengths=options["lengths"],
        batch=options["batch"],
        dtype=options["dtype"],
        device=options["device"],
        threads=options["threads"],
        calibrate=options["calibrate"],
        resume=load(out, argument="--resume") if going_on else None,
        permissions=Permissions(
            pickle=options["allow_pickle"],
            remote_code=options["trust_remote_code"],
            download=options["allow_download"],
        ),
        command=shlex.join(["attentropy", *sys.argv[1:]]),
    )
