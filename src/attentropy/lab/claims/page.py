"""Measured claims as a Markdown page."""

from collections import Counter
from collections.abc import Sequence

from attentropy.lab.claims.registry import MEANINGS, Claim, ClaimResult

_TITLES = {
    "000": "Document 000: noise and entropy",
    "001": "Document 001: entropy-invariant scaling",
    "002": "Document 002: sparsity",
    "003": "Document 003: scores in practice",
    "004": "Document 004: scaled dot-product attention",
    "ID": "Identities",
    "REM": "Gaussian rows",
}
_HEAD = """# Claims, measured

Written by `python -m attentropy.lab.claims`; do not edit. `attentropy claims` measures again.

Five documents on attention were read as a list of statements. Each row below ran a small
computation with a fixed seed, and its verdict follows from the numbers in the last column. Where a
document has a slip of the pen, the verdict is that of what it means, and the row shows both forms.
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
    for source, title in _TITLES.items():
        rows = [pair for pair in measured if pair[0].source == source]
        if rows:
            parts.append(f"## {title}\n\n{_rows(rows)}\n")
    return "\n".join(parts)


def _rows(pairs: Sequence[tuple[Claim, ClaimResult]]) -> str:
    lines = ["| id | statement | verdict | correct or sharp | measured |", "|---|---|---|---|---|"]
    for claim, result in pairs:
        cells = (claim.statement, result.verdict, claim.correction, numbers_text(result.numbers))
        lines.append(" | ".join([f"| {claim.id}", *(_cell(cell) for cell in cells)]) + " |")
    return "\n".join(lines)


def _cell(text: str) -> str:
    for sign in "|*_<":
        text = text.replace(sign, f"\\{sign}")
    return text
