"""The page of a text: `text_page()`, and what report/assets/text.js reads."""

from typing import Any

import msgspec
from msgspec import to_builtins

from attentropy.core.statistic import Statistic
from attentropy.core.statistics import TABLE
from attentropy.report.page import render
from attentropy.scans.texts.records import TextTable

OWN = (
    Statistic(
        name="received",
        symbol="r",
        label="Received attention",
        formula="rⱼ = Σᵢ pᵢⱼ",
        meaning="What all queries give to this token; 1 is its even share.",
        low="ignored",
        high="looked at",
        range=(0.0, None),
        scale="log",
    ),
    Statistic(
        name="surprise",
        symbol="−log p",
        label="Surprise of the next token",
        formula="−log p(next token)",
        meaning="How little the model expected the token after this one; of all heads together.",
        low="expected",
        high="surprising",
        unit="nats",
        range=(0.0, None),
    ),
)
OF_TABLE = ("entropy", "varentropy", "distance", "sink_mass", "top_probability")
STATISTICS = (*(TABLE[name] for name in OF_TABLE), *OWN)


def text_page(table: TextTable, *, name: str) -> str:
    """One text and where heads look in it, as the text of one HTML file.

    Args:
        table: what was measured.
        name: that of the model.
    """
    count = f"{len(table.tokens):,} tokens, {sum(one.heads for one in table.layers):,} heads."
    what = "text" if table.picture is None else "picture"
    return render(
        text_payload(table, name=name),
        title=f"{name} · {what}",
        summary=[f"Where the attention of {name} looks in a {what} of {count}"],
    )


def fitted(table: TextTable, *, room: int) -> TextTable:
    """The text, cut to the room: all heads together, two heads, the layers, then other heads.

    Args:
        table: what was measured.
        room: characters that it may take; the tokens and one head are always there.
    """
    means = [scope for scope in table.scopes if scope not in table.looks and scope != "all"]
    heads = list(table.looks)
    kept: list[str] = []
    for scope in ["all", *heads[:2], *means, *heads[2:]]:
        parts = (table.scopes[scope], table.looks.get(scope, {}))
        room -= sum(len(text) for part in parts for text in part.values())
        if room < 0 and scope not in ("all", *heads[:1]):
            break
        kept.append(scope)
    looks = {head: table.looks[head] for head in heads if head in kept}
    return msgspec.structs.replace(
        table,
        scopes={scope: table.scopes[scope] for scope in table.scopes if scope in kept},
        looks=looks,
        unshown=table.unshown + len(heads) - len(looks),
    )


def text_payload(table: TextTable, *, name: str) -> dict[str, Any]:
    """What report/assets/text.js reads.

    Args:
        table: what was measured.
        name: that of the model.
    """
    absent = {"surprise"} if table.surprise is None else set()
    if table.picture is not None:
        absent.add("distance")  # patches do not lie in a row
    shown = [one for one in STATISTICS if one.name not in absent]
    return {
        "kind": "text",
        "name": name,
        "statistics": [to_builtins(one) for one in shown],
        **to_builtins(table),
    }
