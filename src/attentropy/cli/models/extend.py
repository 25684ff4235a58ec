"""`attentropy extend`: what lets a model read further, tried on text, chosen and exported."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from attentropy.cli.failures import CalledWrongly
from attentropy.cli.models.scan import DTYPES, FILE, loading, placed, threads, tokens_of
from attentropy.core.language.speaking import told

if TYPE_CHECKING:
    from attentropy.distributed.team import Team
    from attentropy.extensions.record import Record
    from attentropy.extensions.result import Extension
    from attentropy.scans.loading.sources import Source


@click.command()
@click.argument("model", required=False)
@click.option("--to", required=True, type=click.IntRange(2), help="The number of tokens to read.")
@click.option("--trained", type=click.IntRange(2), help="The trained length.")
@click.option("--text", "texts", multiple=True, type=FILE, help="UTF-8 text to read; repeatable.")
@click.option("--tokens", type=FILE, help="Token ids to read, a .npy file of integers.")
@click.option("--windows", type=click.IntRange(1),
              help="Texts of full length for the comparison; at least 3 by default.")  # fmt: skip
@click.option("--finalists", default=3, show_default=True, type=click.IntRange(1),
              help="Candidates that read all of these texts.")  # fmt: skip
@click.option("--per-head/--no-per-head", default=True, show_default=True,
              help="Also fit one temperature for each head.")  # fmt: skip
@click.option("--out", default="attentropy-extend", show_default=True, type=FILE, metavar="DIR",
              help="Where the results go.")  # fmt: skip
@click.option("--export", "folder", type=FILE, metavar="DIR",
              help="Write the extended model as a transformers folder.")  # fmt: skip
@click.option("--resume", is_flag=True, help="Continue the stopped extension in --out.")
@click.option("--dtype", default="float32", show_default=True, type=click.Choice(DTYPES),
              help="Precision of weights and activations.")  # fmt: skip
@click.option("--device", default="cpu", show_default=True, help="Such as cpu or cuda:0.")
@click.option("--tensor-parallel", is_flag=True,
              help="Processes of torchrun share heads instead of texts.")  # fmt: skip
@click.option("--threads", "count", type=click.IntRange(1), help="CPU threads.")
@click.option("--json", "as_json", is_flag=True, help="Print only JSON on stdout.")
@click.option("--allow-pickle", is_flag=True, help="Load pickled weights, which can run code.")
@click.option("--trust-remote-code", is_flag=True, help="Run code from the model folder.")
@click.option(
    "--allow-download",
    is_flag=True,
    help="Download MODEL from the hub if it is not on this machine.",
)
def command(model: str | None, **options: Any) -> None:
    """Find what lets MODEL read --to tokens: positions, temperature or windows, tried on text.

    MODEL is as in `attentropy scan`; without it the small model that comes with attentropy is
    extended.
    """
    from attentropy.cli.processes import team_of, writing_to

    with team_of() as team, writing_to(options["out"], team), threads(options["count"]):
        _extend(model, options, team)


def _extend(model: str | None, options: dict[str, Any], team: "Team") -> None:
    from attentropy.cli.models.scan_summary import progress
    from attentropy.cli.processes import keeping
    from attentropy.distributed.team import ALONE
    from attentropy.extensions.extend import extend
    from attentropy.scans.errors import ScanError
    from attentropy.scans.loading import sources

    out, folder = options["out"], options["folder"]
    if options["texts"] and options["tokens"]:
        raise ScanError("{text} and {tokens} exclude each other")
    team.of_first(lambda: _check_folder(folder))
    with (
        keeping(out / "extend.json", team),
        progress(quiet=options["as_json"] or not team.is_first) as listener,
    ):
        permissions = sources.Permissions(
            pickle=options["allow_pickle"],
            remote_code=options["trust_remote_code"],
            download=options["allow_download"],
        )
        source = sources.load(model, placed(options), permissions, count=loading(listener))
        tokens = tokens_of(source, options)
        found = extend(
            source.model,
            tokens.ids,
            to=options["to"],
            trained=options["trained"],
            encode=source.encode,
            begin=tokens.begin,
            texts=options["windows"],
            finalists=options["finalists"],
            per_head=options["per_head"],
            exported=folder is not None,
            done=team.of_first(lambda: _done(out)) if options["resume"] else None,
            listener=listener,
            keep=(lambda record: _keep(out, record)) if team.is_first else (lambda record: None),
            team=ALONE if options["tensor_parallel"] else team,  # then each works on its heads
        )
    if team.is_first:
        _write(found, out)
    lines = _exported(found, folder, source, team, by_heads=options["tensor_parallel"])
    if not team.is_first:
        return
    if options["as_json"]:
        click.echo(json.dumps(machine(found, out, lines), allow_nan=False))
    else:
        show(found, out, [*_applied(found, out, source), *lines])


def _applied(found: "Extension", out: Path, source: "Source") -> list[str]:
    """Lines of Python that apply the choice where they are pasted; none if nothing helps."""
    call = found.call_with(out / "plan.json")
    return [] if call is None else ["import attentropy as at", *source.call.splitlines(), call]


def _exported(
    found: "Extension", folder: Path | None, source: "Source", team: "Team", *, by_heads: bool
) -> list[str]:
    """Write the export; the lines that use it. Processes that share heads all take part."""
    from attentropy.scans.loading.pretrained import quiet

    if folder is None or not (team.is_first or by_heads):
        return []
    if found.best is None:
        return [f"Nothing is written to {folder}, for nothing that was tried helps."]
    tokenizer = _tokenizer(source)
    with quiet():
        return found.export(folder, tokenizer=tokenizer)


def _write(found: "Extension", out: Path) -> None:
    """Write plan and figure."""
    from attentropy.scans.store import write_atomically

    if found.plan is not None:
        write_atomically(out / "plan.json", found.plan.to_json())
    _draw(found, out / "extend.png")


def _tokenizer(source: "Source") -> Any:
    """The tokenizer beside the model, to be written beside the exported one."""
    from attentropy.scans.loading.pretrained import load_tokenizer

    path = Path(source.about.source)
    more = {"gguf_file": path.name} if source.about.kind == "gguf" else {}
    where = path.parent if more else path
    return load_tokenizer(str(where), options={**more, "local_files_only": True})


def _draw(found: "Extension", path: Path) -> None:
    """Loss by position; nothing without matplotlib."""
    from importlib.util import find_spec

    from attentropy.lab.harness.experiment import FigureSpec
    from attentropy.lab.harness.results import RunResults

    rows = RunResults(found.curves())
    if find_spec("matplotlib") is None or not len(rows):
        return
    from attentropy.lab.harness.figures import draw

    title = f"Loss by position, trained at {found.record.task.trained:,}"
    labels = ("position", "nats per token")
    draw(FigureSpec("extend", title, "position", "loss", "candidate", labels=labels), rows, path)


def _check_folder(folder: Path | None) -> None:
    """Refuse an --export that is not new or empty, before any work."""
    if folder is not None and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CalledWrongly(f"--export {folder} must be a new or empty folder")


def _done(out: Path) -> "Record | None":
    from attentropy.extensions.record import Record

    path = out / "extend.json"
    return Record.load(path) if path.exists() else None


def _keep(out: Path, record: "Record") -> None:
    from attentropy.scans.store import write_atomically

    write_atomically(out / "extend.json", record.encoded())


def show(found: "Extension", out: Path, lines: list[str]) -> None:
    """The answer for people: one table, one sentence, one command.

    Args:
        found: what was measured.
        out: the folder with its files.
        lines: commands that use the choice and the export.
    """
    from rich.console import Console
    from rich.markup import escape

    console = Console(soft_wrap=True, highlight=False)
    table = found.table()
    table.title = told(str(table.title))
    for column in table.columns:
        column.header = told(str(column.header))
    console.print(table)
    for note in found.record.notes:
        console.print(f"  {escape(told(note))}")
    console.print(f"[bold]{escape(told(found.sentence))}[/]")
    for line in lines:
        console.print(f"    {escape(told(line))}")
    for path in (out / "extend.json", out / "extend.png"):
        if path.exists():
            console.print(escape(str(path)))


def machine(found: "Extension", out: Path, lines: list[str]) -> dict[str, Any]:
    """The answer for programs.

    Args:
        found: what was measured.
        out: the folder with its files.
        lines: commands that use the export.
    """
    task = found.record.task
    return {
        "complete": found.record.complete,
        "model": task.model,
        "trained": task.trained,
        "to": task.to,
        "best": None if found.best is None else found.best.name,
        "sentence": found.sentence,
        "call": found.call_with(out / "plan.json"),
        "plan": None if found.plan is None else str(out / "plan.json"),
        "notes": found.record.notes,
        "serve": lines,
        "candidates": [
            {
                "name": one.name,
                "texts": one.texts,
                "loss": one.loss.after,
                "above_truncation": one.loss.difference,
                "error": one.loss.error,
                "passkeys": one.hits,
                "asked": one.asked,
                "digits": None if one.digits is None else one.digits.after,
                "digits_error": None if one.digits is None else one.digits.error,
                "helps": one.helps,
            }
            for one in found.outcomes
        ],
        "screened": [
            {"name": one.candidate, "loss": one.change.after, "error": one.change.error}
            for one in found.record.screened
        ],
    }
