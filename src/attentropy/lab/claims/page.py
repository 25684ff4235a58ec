"""Measured claims as a Markdown page."""

from collections import Counter
from collections.abc import Sequence

from attentropy.lab.claims.outline import documents, quoted
from attentropy.lab.claims.registry import MEANINGS, Claim, ClaimResult

_OWN = {"ID": "Identities", "REM": "Gaussian rows"}
_HEAD = """# Claims, measured

Written by `python -m attentropy.lab.claims`; do not edit. `attentropy claims` measures again.

Five documents on attention were read as a list of statements. Each row below ran a small
computation with a fixed seed, and its verdict follows from the numbers in the last column. Where a
document has a slip of the pen, the verdict is that of what it means, and the row shows both forms.
The sentence that a row rests on is quoted as it stands, with its section; of a formula only the
part that matters. Where each section is done here: [sections](sections.md).
"""


def numbers_text(numbers: dict[str, float]) -> str:
    """name=value pairs with four digits each; a rounding error of zero is shown as ~0.

    Args:
        numbers: by name.
    """
    return ", ".join(f"{name}={_short(value)}" for name, value in numbers.items())


def _short(value: float) -> str:
    return "~0" if 0 < abs(value) < 1e-9 else f"{value:.4g}"


def render(measured: Sequence[tuple[Claim, ClaimResult]]) -> str:
    """The whole page as Markdown.

    Args:
        measured: claims with their results.
    """
    said = [result.verdict for claim, result in measured if claim.of_documents]
    counts = Counter(said)
    legend = "\n".join(f"- **{v}** ({counts[v]}): {text}" for v, text in MEANINGS.items())
    own = f"The {len(measured) - len(said)} identities of this library at the end are not counted."
    parts = [_HEAD, f"{len(said)} statements of the documents:\n\n{legend}\n\n{own}\n"]
    for source, title in _titles().items():
        rows = [pair for pair in measured if pair[0].source == source]
        if rows:
            parts.append(f"## {title}\n\n{_rows(rows)}\n")
    return "\n".join(parts)


def _titles() -> dict[str, str]:
    """Headings of the page: the titles of the documents, and ours."""
    return {one.key: f"{one.key}: 《{one.title}》" for one in documents()} | _OWN


def _rows(pairs: Sequence[tuple[Claim, ClaimResult]]) -> str:
    lines = [
        "| id | statement | original | verdict | correct or sharp | measured |",
        "|---|---|---|---|---|---|",
    ]
    for claim, result in pairs:
        cells = (
            _cell(claim.statement), _quotation(claim.id), result.verdict,
            _cell(claim.correction), _cell(numbers_text(result.numbers)),
        )  # fmt: skip
        lines.append(" | ".join([f"| {claim.id}", *cells]) + " |")
    return "\n".join(lines)


def _quotation(id_: str) -> str:
    """The sentence with its section; bars of formulas in words, as a bar would end the cell."""
    found = quoted(id_)
    if found is None:
        return "-"
    words = found.words.replace(r"\|", r"\Vert ").replace("|", r"\vert ")
    return f"“{words}” ({found.section})"


def _cell(text: str) -> str:
    for sign in "|*_<":
        text = text.replace(sign, f"\\{sign}")
    return text
