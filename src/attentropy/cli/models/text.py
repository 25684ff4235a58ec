"""`attentropy text`: one text, and which of its words every head looks at, as an HTML file."""

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from attentropy.cli.models.scan import DTYPES, FILE, threads
from attentropy.core.language.speaking import told
from attentropy.core.notebook.words import plural

if TYPE_CHECKING:
    from attentropy.scans.loading.inputs import Tokens
    from attentropy.scans.loading.sources import Source
    from attentropy.scans.texts.reading import TokenReading
    from attentropy.scans.texts.table import TextTable
    from attentropy.scans.texts.view import Head, TextView

LONGEST = 8192


READS = (
    click.option("--text", "texts", multiple=True, type=FILE,
                 help="UTF-8 text to read; repeatable."),
    click.option("--prompt", help="The text itself."),
    click.option("--target", help="The text of the decoder, in a model with encoder and decoder."),
    click.option("--generate", type=click.IntRange(1), metavar="N",
                 help="Continue the text by N tokens, always the most likely one."),
    click.option("--image", type=FILE, help="A picture to read, for vision models."),
    click.option("--length", default=LONGEST, show_default=True, type=click.IntRange(2),
                 metavar="N", help="The largest number of tokens to read."),
    click.option("--dtype", default="float32", show_default=True, type=click.Choice(DTYPES),
                 help="Precision of weights and activations."),
    click.option("--device", default="cpu", show_default=True, help="Such as cpu or cuda:0."),
    click.option("--threads", "cores", type=click.IntRange(1), help="CPU threads."),
    click.option("--allow-pickle", is_flag=True, help="Load pickled weights, which can run code."),
    click.option("--trust-remote-code", is_flag=True,
                 help="Run code from the model folder."),
    click.option("--allow-download", is_flag=True,
                 help="Download MODEL from the hub if it is not on this machine."),
)  # fmt: skip


def reads(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that say what a model reads, and how it is loaded.

    Args:
        command: takes them as `load` and `reading_of` do.
    """
    for option in reversed(READS):
        command = option(command)
    return command


@click.command()
@click.argument("model", required=False)
@reads
@click.option("--heads", metavar="L.H,...",
              help="Heads whose weights are kept, such as 3.5,12.0.")  # fmt: skip
@click.option("--out", default="attentropy-text", show_default=True, type=FILE, metavar="DIR",
              help="Where text.html goes.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print only JSON on stdout.")
def command(model: str | None, out: Path, as_json: bool, **options: Any) -> None:
    """Show which words each head of MODEL looks at, in a text.

    MODEL is a transformers folder, a GGUF file or package.module:factory; without it the small
    model that comes with attentropy reads. DIR/text.html has the text, shaded by a statistic of a
    head, a layer or all heads; a click on a token shows its 16 largest weights, and who looks at
    it. Vision models read a picture instead.
    """
    from attentropy.report.text import text_page
    from attentropy.scans.store import prepared, write_atomically
    from attentropy.scans.texts.table import table_of
    from attentropy.scans.texts.view import view_of

    heads = None if options["heads"] is None else parse_heads(options["heads"])
    with prepared(out), threads(options["cores"]):
        source = load(model, options)
        view = view_of(reading_of(source, options), heads=heads)
        table = table_of(view)
        write_atomically(out / "text.html", text_page(table, name=source.about.name).encode())
    if as_json:
        found = machine(view, table, source, out)
        click.echo(json.dumps(found, allow_nan=False))
    else:
        _show(view, table, source, out)


def load(model: str | None, options: dict[str, Any]) -> "Source":
    """The model that the command line names.

    Args:
        model: its name; None for the embedded one.
        options: of the command line.
    """
    from attentropy.scans.loading import sources

    permissions = sources.Permissions(
        pickle=options["allow_pickle"],
        remote_code=options["trust_remote_code"],
        download=options["allow_download"],
    )
    return sources.load(model, sources.Placement(options["dtype"], options["device"]), permissions)


def reading_of(source: "Source", options: dict[str, Any]) -> "TokenReading":
    """What the model reads: a picture, or the prompt, the files or the sample text.

    Args:
        source: the model, with its tokenizer.
        options: of the command line.
    """
    from attentropy.scans.errors import ScanError
    from attentropy.scans.texts.pictures import of_picture, tower_of
    from attentropy.scans.texts.reading import of_text

    texts = {name: options[name] for name in ("texts", "prompt", "target", "generate")}
    given = [name.removesuffix("s") for name, value in texts.items() if value]
    if options["image"] is not None and given:
        raise ScanError("{image} and {" + given[0] + "} exclude each other")
    if options["texts"] and options["prompt"] is not None:
        raise ScanError("{text} and {prompt} exclude each other")
    if options["image"] is not None or (tower_of(source.model) is source.model and not given):
        settings = Path(source.about.source) / "preprocessor_config.json"
        return of_picture(source.model, options["image"], settings=settings)
    length = min(options["length"], source.about.maximum_length or options["length"])
    return of_text(
        source.model,
        _tokens(source, options),
        target=_target(source, options["target"]),
        length=length,
        generate=options["generate"],
        label=source.decode,
    )


def _tokens(source: "Source", options: dict[str, Any]) -> "Tokens":
    """The prompt, the files, or else the sample text."""
    from attentropy.cli.models.scan import tokens_of
    from attentropy.scans.loading import inputs

    if options["prompt"] is None:
        return tokens_of(source, {**options, "tokens": None})
    inputs.check_reads_text(source.model)
    return inputs.from_prompt(options["prompt"], source)


def _target(source: "Source", text: str | None) -> "list[int] | None":
    """The ids of what the decoder reads, after the token that it starts with."""
    from attentropy.models.losses.reading import has_decoder_beside
    from attentropy.scans.errors import ScanError

    if text is None:
        return None
    if not has_decoder_beside(source.model):
        raise ScanError("{target} is for models with an encoder and a decoder")
    if source.encode is None or not text.strip():
        raise ScanError("{target} is empty" if source.encode else "the model has no tokenizer")
    start = getattr(getattr(source.model, "config", None), "decoder_start_token_id", None)
    return [*([] if start is None else [start]), *source.encode(text)]


def _show(view: "TextView", table: "TextTable", source: "Source", out: Path) -> None:
    for place, why in view.odd.items():
        click.echo(told(f"not shown: {place} ({why})"), err=True)
    if view.generated:
        words = "".join(source.decode(row.token) for row in view.generated)
        click.echo(told(f"{len(view.generated):,} generated: {words}"))
    heads = plural(len(table.looks), "head")
    click.echo(told(f"{len(table.tokens):,} tokens, weights of {heads}"))
    click.echo(told(f"Text: {out / 'text.html'}"))


def machine(view: "TextView", table: "TextTable", source: "Source", out: Path) -> dict[str, Any]:
    """The summary for programs.

    Args:
        view: what was measured.
        table: what the page holds of it.
        source: the model.
        out: the folder of the page.
    """
    page = out / "text.html"
    return {
        "text": str(page),
        "bytes": page.stat().st_size,
        "model": source.about.name,
        "tokens": len(view.labels),
        "left": view.left,
        "layers": [row.place for row in view.layers],
        "heads": list(table.looks),  # that have room
        "surprise": None if view.surprise is None else float(view.surprise.double().nanmean()),
        "generated": [
            {**dataclasses.asdict(row), "text": source.decode(row.token)} for row in view.generated
        ],
        "odd": view.odd,
    }


def parse_heads(text: str) -> "list[Head]":
    """`3.5,12.0` as pairs of layer and head.

    >>> parse_heads("3.5, 12.0")
    [(3, 5), (12, 0)]
    """
    from attentropy.scans.errors import ScanError

    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch(r"[0-9]+\.[0-9]+", part) for part in parts):
        rule = "{heads} must be layers and heads such as 3.5,12.0, got {given!r}"
        raise ScanError(rule, given=text)
    pairs = [part.split(".") for part in parts]
    return [(int(layer), int(head)) for layer, head in pairs]
