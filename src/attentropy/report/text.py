"""The page of a text: `text_page()`, and what report/assets/text.js reads."""

from typing import Any

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
