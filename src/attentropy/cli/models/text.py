"""`attentropy text`: one text, and which of its words every head looks at, as an HTML file."""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from attentropy.cli.models.scan import DTYPES, FILE, threads

if TYPE_CHECKING:
    from attentropy.scans.loading.inputs import Tokens
    from attentropy.scans.loading.sources import Source
    from attentropy.scans.text import Head, TextView

LONGEST = 8192


@click.command()
@click.argument("model", required=False)
@click.option("--text", "texts", multiple=True, type=FILE, help="UTF-8 text to read; repeatable.")
@click.option("--prompt", help="The text itself.")
@click.option("--heads", metavar="L.H,...",
              help="Heads whose weights are kept, such as 3.5,12.0.")  # fmt: skip
@click.option("--length", default=LONGEST, show_default=True, type=click.IntRange(2), metavar="N",
              help="Tokens to read at most.")  # fmt: skip
@click.option("--dtype", default="float32", show_default=True, type=click.Choice(DTYPES),
              help="Precision of weights and activations.")  # fmt: skip
@click.option("--device", default="cpu", show_default=True, help="Such as cpu or cuda:0.")
@click.option("--threads", "cores", type=click.IntRange(1), help="CPU threads.")
@click.option("--out", default="attentropy-text", show_default=True, type=FILE, metavar="DIR",
              help="Where text.html goes.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print only JSON on stdout.")
@click.option("--allow-pickle", is_flag=True, help="Load pickled weights, which can run code.")
@click.option("--trust-remote-code", is_flag=True, help="Run code that the model folder brings.")
@click.option("--allow-download", is_flag=True, help="Fetch MODEL from the hub if it is not here.")
def command(model: str | None, out: Path, as_json: bool, **options: Any) -> None:
    """Show which words each head of MODEL looks at, in a text.

    MODEL is a transformers folder, a GGUF file or package.module:factory; without it the small
    model that comes with attentropy reads. DIR/text.html has the text, shaded by a statistic of a
    head, a layer or all heads; a click on a token shows its 16 largest weights, and who looks at
    it.
    """
    from attentropy.scans.store import prepared, write_atomically

    heads = None if options["heads"] is None else parse_heads(options["heads"])
    with prepared(out), threads(options["cores"]):
        source, view = _view(model, heads, options)
        page = _page(view, source)
        write_atomically(out / "text.html", page)
    found = machine(view, source, out)
    if as_json:
        click.echo(json.dumps(found, allow_nan=False))
    else:
        click.echo(f"{found['tokens']:,} tokens, weights of {len(found['heads'])} heads")
        click.echo(f"Text: {found['text']}")


def _page(view: "TextView", source: "Source") -> bytes:
    from attentropy.report.text import text_page

    # a token may be half of a character, which no file can hold
    return text_page(view, name=source.about.name).encode(errors="replace")


def _view(
    model: str | None, heads: "list[Head] | None", options: dict[str, Any]
) -> tuple["Source", "TextView"]:
    from attentropy.scans.errors import ScanError
    from attentropy.scans.loading import sources
    from attentropy.scans.text import text_view

    if options["texts"] and options["prompt"] is not None:
        raise ScanError("{text} and {prompt} exclude each other")
    permissions = sources.Permissions(
        pickle=options["allow_pickle"],
        remote_code=options["trust_remote_code"],
        download=options["allow_download"],
    )
    placement = sources.Placement(options["dtype"], options["device"])
    source = sources.load(model, placement, permissions)
    tokens = _tokens(source, options)
    length = min(options["length"], source.about.maximum_length or options["length"])
    view = text_view(source.model, tokens, heads=heads, length=length, label=source.decode)
    return source, view


def _tokens(source: "Source", options: dict[str, Any]) -> "Tokens":
    """The prompt, the files, or else the sample text."""
    from attentropy.cli.models.scan import tokens_of
    from attentropy.scans.loading import inputs

    if options["prompt"] is None:
        return tokens_of(source, {**options, "tokens": None})
    inputs.check_reads_text(source.model)
    return inputs.from_prompt(options["prompt"], source)


def machine(view: "TextView", source: "Source", out: Path) -> dict[str, Any]:
    """The summary for programs.

    Args:
        view: what was measured.
        source: the model.
        out: the folder of the page.
    """
    from attentropy.report.text import text_payload

    page = out / "text.html"
    return {
        "text": str(page),
        "bytes": page.stat().st_size,
        "model": source.about.name,
        "tokens": len(view.labels),
        "left": view.left,
        "layers": [row.place for row in view.layers],
        "heads": list(text_payload(view, name=source.about.name)["looks"]),  # that have room
        "surprise": None if view.surprise is None else float(view.surprise.double().mean()),
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
