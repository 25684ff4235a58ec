"""`attentropy scan`: from a model to scan.json and report.html, with a summary on the way."""

import itertools
import json
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from attentropy.distributed.team import Team
    from attentropy.models.progress import Listener
    from attentropy.scans.loading.inputs import Tokens
    from attentropy.scans.loading.sources import Placement, Source
    from attentropy.scans.schema import Scan

DTYPES = ("float32", "bfloat16", "float16", "float64")
FILE = click.Path(path_type=Path)


class _ScanCommand(click.Command):
    """A command whose --lengths are one argument: numbers after a space get an explanation."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--lengths" in args:
            after = args[args.index("--lengths") + 1 :]
            numbers = list(itertools.takewhile(lambda word: word.strip(",").isdigit(), after))
            if len(numbers) > 1:
                joined = ",".join(word.strip(",") for word in numbers)
                ctx.fail(f"--lengths takes commas and no spaces: --lengths {joined}")
        return super().parse_args(ctx, args)


@click.command(cls=_ScanCommand)
@click.argument("model", required=False)
@click.option("--text", "texts", multiple=True, type=FILE, help="UTF-8 text to read; repeatable.")
@click.option("--tokens", type=FILE, help="Token ids to read, a .npy file of integers.")
@click.option("--lengths", help="Such as 64,128,256; by default up to 4 times the trained length.")
@click.option("--batch", default=4, show_default=True, type=click.IntRange(1),
              help="Windows of the longest length in a forward pass.")  # fmt: skip
@click.option("--trained", type=click.IntRange(2), metavar="N",
              help="The trained length, if the model's files do not say it.")  # fmt: skip
@click.option("--tokens-per-length", type=click.IntRange(2), metavar="N",
              help="Tokens read at each length (default: --batch windows).")  # fmt: skip
@click.option("--quick", is_flag=True,
              help="Read one window of the longest length, no more.")  # fmt: skip
@click.option("--dtype", default="float32", show_default=True, type=click.Choice(DTYPES),
              help="Precision of weights and activations.")  # fmt: skip
@click.option("--device", default="cpu", show_default=True, help="Such as cpu or cuda:0.")
@click.option("--device-map", type=click.Choice(("auto", "cpu", "disk")),
              help="Where weights are kept until a layer runs.")  # fmt: skip
@click.option("--tensor-parallel", is_flag=True,
              help="Processes of torchrun share heads instead of windows.")  # fmt: skip
@click.option("--threads", type=click.IntRange(1), help="CPU threads.")
@click.option("--out", default="attentropy-scan", show_default=True, type=FILE, metavar="DIR",
              help="Where the results go.")  # fmt: skip
@click.option("--resume", is_flag=True, help="Continue the stopped scan in --out.")
@click.option("--compare", type=FILE, help="Another scan.json to compare with this one.")
@click.option("--calibrate", is_flag=True, help="Also find and try scales that hold the entropy.")
@click.option("--json", "as_json", is_flag=True, help="Print only JSON on stdout.")
@click.option("--allow-pickle", is_flag=True, help="Load pickled weights, which can run code.")
@click.option("--trust-remote-code", is_flag=True, help="Run code from the model folder.")
@click.option(
    "--allow-download",
    is_flag=True,
    help="Download MODEL from the hub if it is not on this machine.",
)
def command(model: str | None, **options: Any) -> None:
    """Scan MODEL's attention at several lengths and write a report.

    MODEL is a transformers folder, a GGUF file or package.module:factory; without it the small
    model that comes with attentropy is scanned.
    """
    from attentropy.cli.processes import team_of, writing_to

    out: Path = options["out"]
    with team_of() as team, writing_to(out, team):
        _scan(model, out, options, team)


def _scan(model: str | None, out: Path, options: dict[str, Any], team: "Team") -> None:
    from attentropy.cli.models.scan_summary import progress
    from attentropy.cli.processes import keeping

    name, other = team.of_first(lambda: _compared(out, options))
    # the embedded model is too small to be shared between threads
    alone = model is None and options["threads"] is None
    with (
        keeping(out / "scan.json", team, before=lambda: _keep_compared(out, name, other)),
        threads(1 if alone else options["threads"]),
        progress(quiet=options["as_json"] or not team.is_first) as listener,
    ):
        scan = _run(model, out, options, listener, team)
    if team.is_first:
        _write(scan, name, other, out, as_json=options["as_json"])


def _write(scan: "Scan", name: str, other: "Scan | None", out: Path, *, as_json: bool) -> None:
    from attentropy.cli.models.scan_summary import machine, show
    from attentropy.report import scan_page
    from attentropy.scans.judging.remedies import POSITIONS
    from attentropy.scans.store import folder_name, save, write_atomically

    if scan.plan is not None:
        write_atomically(out / "plan.json", scan.plan.to_json())
    if scan.positions is not None:
        write_atomically(out / POSITIONS, scan.positions.to_json())
    _keep_compared(out, name, other)
    names = (folder_name(out), name) if other else ()
    write_atomically(out / "report.html", scan_page(scan, other, names=names))
    save(out, scan)
    if as_json:
        click.echo(json.dumps(machine(scan, out), allow_nan=False))
    else:
        show(scan, out)


def _run(
    model: str | None, out: Path, options: dict[str, Any], listener: "Listener", team: "Team"
) -> "Scan":
    """Load the model, read the tokens, scan; what is measured is saved after every length."""
    from attentropy.distributed.team import ALONE
    from attentropy.scans.errors import ScanError
    from attentropy.scans.judging import calibration
    from attentropy.scans.loading import sources
    from attentropy.scans.measuring import lengths as spans
    from attentropy.scans.scan import Provenance, scan
    from attentropy.scans.store import save

    began = time.perf_counter()
    lengths = None if options["lengths"] is None else parse(options["lengths"])
    if options["texts"] and options["tokens"]:
        raise ScanError("{text} and {tokens} exclude each other")
    if options["quick"] and options["tokens_per_length"]:
        raise ScanError("{quick} and {tokens_per_length} exclude each other")
    if options["calibrate"] and lengths is not None:
        trained = options["trained"] or sources.trained_on_disk(model)
        calibration.check_reach(spans.check(lengths), trained)
    done = team.of_first(lambda: _stopped(out)) if options["resume"] else None
    permissions = sources.Permissions(
        pickle=options["allow_pickle"],
        remote_code=options["trust_remote_code"],
        download=options["allow_download"],
    )
    source = sources.load(model, placed(options), permissions, count=loading(listener))
    tokens = tokens_of(source, options)
    provenance = Provenance(
        model=source.about,
        text=tokens.about,
        command=shlex.join(["attentropy", *sys.argv[1:]]),
        load=source.call,
        label=source.decode,
        began=began,
        folder=out.as_posix(),
    )
    return scan(
        source.model,
        tokens,
        lengths=lengths,
        batch=options["batch"],
        calibrate=options["calibrate"],
        trained=options["trained"],
        tokens_per_length=1 if options["quick"] else options["tokens_per_length"],
        provenance=provenance,
        done=done,
        listener=listener,
        keep=(lambda partial: save(out, partial)) if team.is_first else None,
        team=ALONE if options["tensor_parallel"] else team,  # then each works on its heads
    )


def placed(options: dict[str, Any]) -> "Placement":
    """Precision and device, by the options of the command line.

    Args:
        options: `dtype`, `device`, `tensor_parallel`, and `device_map` where a command has it.
    """
    from attentropy.distributed.launched import own_device
    from attentropy.scans.loading.sources import Placement

    by_heads: bool = options["tensor_parallel"]
    return Placement(
        options["dtype"],
        options["device"] if by_heads else own_device(options["device"]),
        options.get("device_map"),
        tensor_parallel=by_heads,
    )


def _stopped(out: Path) -> "Scan | None":
    """The scan in a folder, if there is one."""
    return _load("resume", out) if (out / "scan.json").exists() else None


def loading(listener: "Listener") -> Callable[[int, int], None]:
    """Report the tensors of a GGUF file to a listener while they are read.

    Args:
        listener: what shows it.
    """

    def count(done: int, total: int) -> None:
        if done == 1:
            listener.stage("loading the model")
            listener.begin(total)
        listener.advance(1)

    return count


def parse(text: str) -> list[int]:
    """`64,128,256` as integers.

    >>> parse("64, 128")
    [64, 128]
    """
    from attentropy.scans.errors import ScanError

    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch("-?[0-9]+", part) for part in parts):
        rule = "{lengths} must be integers such as 64,128,256, got {given!r}"
        raise ScanError(rule, given=text)
    return [int(part) for part in parts]


def tokens_of(source: "Source", options: dict[str, Any]) -> "Tokens":
    """What the model reads, by the options `tokens` and `texts`; else the sample text.

    Args:
        source: the model, with its tokenizer.
        options: of the command line.
    """
    from attentropy.scans.loading import inputs

    inputs.check_reads_text(source.model)
    if options["tokens"] is not None:
        return inputs.from_file(options["tokens"], source)
    texts = options["texts"]
    return inputs.from_texts(texts, source) if texts else inputs.from_sample(source)


def _compared(out: Path, options: dict[str, Any]) -> "tuple[str, Scan | None]":
    """The scan to show beside, by name: that of --compare, or the one that --resume finds."""
    from attentropy.scans.store import folder_name, load_compared

    given = options["compare"]
    if given:
        return folder_name(given), _load("compare", given)
    return (load_compared(out) if options["resume"] else None) or ("", None)


def _keep_compared(out: Path, name: str, other: "Scan | None") -> None:
    """Keep it for later reports, in place of that of an earlier scan."""
    from attentropy.scans.store import forget_compared, save_compared

    if other is None:
        forget_compared(out)
    else:
        save_compared(out, name, other)


def _load(argument: str, path: Path) -> "Scan":
    """The scan that an argument names; errors begin with its option."""
    from attentropy.scans.errors import ScanError
    from attentropy.scans.store import load

    try:
        return load(path)
    except ScanError as error:
        raise ScanError(f"{{{argument}}} {{why}}", why=error) from error


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Use this many CPU threads inside the block; None changes nothing."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
