"""`attentropy claims`: measure what the source documents say, and compare with the audit."""

import json
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from attentropy.core.language.speaking import spoken, told

if TYPE_CHECKING:
    from attentropy.lab.claims import Claim, ClaimResult


@click.command()
@click.option(
    "--id", "ids", multiple=True, help="Only this claim, for example '001-(61)'; repeatable."
)
@click.option("--source", "sources", multiple=True, help="Only 000 to 004, ID or REM; repeatable.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON only.")
def command(ids: tuple[str, ...], sources: tuple[str, ...], as_json: bool) -> None:
    """Check the statements of the source documents by running them.

    Exits with 1 if a measured verdict differs from the expected one.
    """
    from attentropy.lab.claims import find

    try:
        claims = find(ids, sources)
    except KeyError as error:
        raise click.UsageError(str(error.args[0])) from None
    if not claims:
        known = ", ".join(dict.fromkeys(claim.source for claim in find()))
        raise click.UsageError(f"no claim has that id and that source; sources are {known}")
    measured = _measure(claims)
    if as_json:
        click.echo(json.dumps([_row(*pair) for pair in measured], ensure_ascii=False))
    else:
        _print(measured)
    if not all(claim.agrees(result) for claim, result in measured):
        sys.exit(1)


def _measure(claims: "list[Claim]") -> "list[tuple[Claim, ClaimResult]]":
    from rich.console import Console
    from rich.progress import track

    from attentropy.lab.claims import run

    console = Console(stderr=True)
    shown = track(
        run(claims), told("measuring"), total=len(claims), console=console, transient=True,
        disable=not console.is_terminal,
    )  # fmt: skip
    return list(shown)


def _row(claim: "Claim", result: "ClaimResult") -> dict[str, Any]:
    from attentropy.cli.theory.theory import plain
    from attentropy.lab.claims.outline import quoted

    original = quoted(claim.id)
    return {
        "id": claim.id,
        "source": claim.source,
        "document": original and original.document,
        "section": original and original.section,
        "original": original and original.words,
        "statement": claim.statement,
        "expected": claim.expected,
        "verdict": result.verdict,
        "agrees": claim.agrees(result),
        "correction": claim.correction,
        "numbers": {name: plain(value) for name, value in result.numbers.items()},
    }


def _statement(claim: "Claim") -> str:
    """What the document says: in Chinese its own sentence with the section, else ours."""
    from attentropy.lab.claims.outline import quoted

    original = quoted(claim.id) if spoken() == "zh" else None
    return told(claim.statement) if original is None else f"{original.words}（{original.section}）"


_COLOURS = {"holds": "green", "cond": "cyan", "approx": "blue", "false": "yellow"}


def _print(measured: "list[tuple[Claim, ClaimResult]]") -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Column, Table
    from rich.text import Text

    from attentropy.lab.claims.page import numbers_text

    titles = [told(name) for name in ("id", "statement", "verdict", "correct", "measured")]
    table = Table(*(Column(title, overflow="fold") for title in titles), box=box.SIMPLE_HEAD)
    for claim, result in measured:
        style = _COLOURS.get(result.verdict, "red") if claim.agrees(result) else "bold red"
        text = result.verdict if claim.agrees(result) else f"{result.verdict}, not {claim.expected}"
        cells = (_statement(claim), told(claim.correction), numbers_text(result.numbers))
        said, correct, numbers = (Text(cell) for cell in cells)
        table.add_row(Text(claim.id), said, Text(told(text), style=style), correct, numbers)
    console = Console()
    console.print(table)
    counts = Counter(result.verdict for claim, result in measured if claim.of_documents)
    own = sum(not claim.of_documents for claim, _ in measured)
    wrong = sum(not claim.agrees(result) for claim, result in measured)
    summary = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    headline = f"{counts.total()} statements of the documents" + (f": {summary}" if summary else "")
    last = f"{headline}; {own} identities of our own; {wrong} differ from the audit"
    console.print(told(last))
