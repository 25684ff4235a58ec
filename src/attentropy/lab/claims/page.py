"""Measured claims as a Markdown page."""

from collections import Counter
from collections.abc import Sequence

from attentropy.core.language.speaking import speaking, spoken, told
from attentropy.lab.claims.outline import documents, quoted
from attentropy.lab.claims.registry import MEANINGS, Claim, ClaimResult

_CHINESE_HEAD = """<!-- written by python -m attentropy.lab.claims -->

# 论断核查

五篇文档被读成一条条论断。下面每一行都以固定的种子跑过一个小计算，判定由最后一列的数字得出；
`attentropy claims --lang zh` 会重新测量。文档有笔误之处，按其本意判定，行中两种写法都列出。
论断所依据的原句照录并注明出处，公式只录要紧的部分。各节由什么实现，见[文档各节](sections.md)。
"""
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
    return "~0" if 0 < abs(value) < 1e-9 else f"{value + 0.0:.4g}"  # -0 is shown as 0


def render(measured: Sequence[tuple[Claim, ClaimResult]], language: str = "en") -> str:
    """The whole page as Markdown.

    Args:
        measured: claims with their results.
        language: "en", or "zh" for the Chinese page, whose statements are the sentences themselves.
    """
    said = [result.verdict for claim, result in measured if claim.of_documents]
    table = _chinese_rows if language == "zh" else _rows
    with speaking(language):
        parts = _opening(Counter(said), own=len(measured) - len(said))
        for source, title in _titles().items():
            rows = [pair for pair in measured if pair[0].source == source]
            if rows:
                parts.append(f"## {told(title)}\n\n{table(rows)}\n")
    return "\n".join(parts)


def _opening(counts: Counter[str], *, own: int) -> list[str]:
    """The head of the page, and how many statements have which verdict."""
    if spoken() == "zh":
        lines = [f"- **{told(v)}**（{counts[v]}）：{told(text)}" for v, text in MEANINGS.items()]
        legend, total = "\n".join(lines), counts.total()
        after = f"末尾的 {own} 条是本库自己的恒等式，不计在内。"
        return [_CHINESE_HEAD, f"文档中的论断 {total} 条：\n\n{legend}\n\n{after}\n"]
    legend = "\n".join(f"- **{v}** ({counts[v]}): {text}" for v, text in MEANINGS.items())
    after = f"The {own} identities of this library at the end are not counted."
    return [_HEAD, f"{counts.total()} statements of the documents:\n\n{legend}\n\n{after}\n"]


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


def _chinese_rows(pairs: Sequence[tuple[Claim, ClaimResult]]) -> str:
    lines = ["| 编号 | 原句 | 判定 | 更正，或更精确的说法 | 测得 |", "|---|---|---|---|---|"]
    for claim, result in pairs:
        own = quoted(claim.id) is None
        cells = (
            _cell(told(claim.statement)) if own else _quotation(claim.id), told(result.verdict),
            _cell(told(claim.correction)), _cell(numbers_text(result.numbers)),
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
