"""Formulas between dollar signs become MathML, which browsers draw by themselves, offline."""

import re
from typing import Any

from latex2mathml.converter import convert

_FENCE = re.compile(r"(```.*?```|`[^`\n]*`)", re.DOTALL)
_BLOCK = re.compile(r"\$\$(.+?)\$\$", re.DOTALL)
_INLINE = re.compile(r"(?<![\\$])\$(?!\s)([^$\n]+(?:\n[^$\n]+)?)(?<!\s)\$")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs for every page; code is left alone."""
    pieces = _FENCE.split(markdown)
    return "".join(piece if i % 2 else _rendered(piece) for i, piece in enumerate(pieces))


def _rendered(text: str) -> str:
    text = _BLOCK.sub(lambda m: _one_line(convert(m[1], display="block")), text)
    return _INLINE.sub(lambda m: _inline(m[1].replace("\n", " ")), text)


def _inline(formula: str) -> str:
    # a line that starts with <math> would become a paragraph of its own
    return f"<span>{_one_line(convert(formula))}</span>"


def _one_line(mathml: str) -> str:
    # a bar would end the cell of a table
    return mathml.replace("\n", " ").replace("|", "&#x7C;")
