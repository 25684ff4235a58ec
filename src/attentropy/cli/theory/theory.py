"""`attentropy theory`: look formulas up, and evaluate them."""

import json
import math
from difflib import get_close_matches
from typing import Any

import click

from attentropy.core.language.speaking import told


@click.command()
@click.argument("name", required=False)
@click.argument("inputs", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="Print JSON only.")
def command(name: str | None, inputs: tuple[str, ...], as_json: bool) -> None:
    """List the closed forms, or evaluate one: attentropy theory S_relu2 beta=-1 gamma=2.

    Vectors are written as scores=1,2,3 or scores=[1,2,3]; hidden keys as -inf.
    """
    from attentropy.theory import CATALOGUE

    if name is None:
        _list(as_json)
        return
    if name not in CATALOGUE:
        near = get_close_matches(name, CATALOGUE, 3)
        hint = f"; did you mean {', '.join(near)}?" if near else "; see `attentropy theory`"
        raise click.UsageError(f"no formula {name!r}{hint}")
    if not inputs:
        _show(name, as_json)
        return
    pairs = [_pair(text) for text in inputs]
    given = [key for key, _ in pairs]
    for key in given:
        if given.count(key) > 1:
            raise click.UsageError(f"{name}: {key} must be given once, got {given.count(key)}")
    _evaluate(name, dict(pairs), as_json)


def _pair(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals:
        raise click.UsageError(f"inputs are written name=value, got {text!r}")
    return key, _value(value)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text.split(",") if "," in text else text


def _evaluate(name: str, inputs: dict[str, Any], as_json: bool) -> None:
    from attentropy.core.errors import AttentropyError
    from attentropy.theory import CATALOGUE

    try:
        value = CATALOGUE[name](**inputs)
    except (AttentropyError, TypeError, ValueError) as error:
        raise click.UsageError(f"{name}: {error}") from None
    if as_json:
        click.echo(json.dumps({"function": name, "inputs": inputs, "value": plain(value)}))
    else:
        click.echo(value)


def plain(value: Any) -> Any:
    """The value as JSON can hold it: infinities and NaN become text.

    Args:
        value: a number, a list or text.
    """
    if isinstance(value, list):
        return [plain(part) for part in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _row(name: str) -> dict[str, Any]:
    from attentropy.theory import CATALOGUE

    entry = CATALOGUE[name]
    return {
        "function": name,
        "inputs": list(entry.inputs),
        "formula": entry.formula,
        "domain": entry.domain,
        "source": entry.source,
    }


def _show(name: str, as_json: bool) -> None:
    row = _row(name)
    if as_json:
        click.echo(json.dumps(row))
        return
    for key, value in row.items():
        click.echo(f"{told(key):9} {' '.join(value) if isinstance(value, list) else value}")


def _list(as_json: bool) -> None:
    from attentropy.theory import CATALOGUE

    rows = [_row(name) for name in CATALOGUE]
    if as_json:
        click.echo(json.dumps(rows))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table

    titles = [told(name) for name in ("function", "inputs", "formula", "domain", "source")]
    table = Table(*titles, box=box.SIMPLE_HEAD)
    for row in rows:
        table.add_row(row["function"], " ".join(row["inputs"]), *_text(row))
    Console().print(table, markup=False)


def _text(row: dict[str, Any]) -> list[Any]:
    from rich.text import Text

    return [Text(row[key]) for key in ("formula", "domain", "source")]
