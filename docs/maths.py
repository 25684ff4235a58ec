"""Formulas between dollar signs become MathML, which browsers draw by themselves, offline."""

import re
from typing import Any

from latex2mathml.converter import convert

_FENCE = re.compile(r"(```.*?```|`[^`\n]*`)", re.DOTALL)
_BLOCK = re.compile(r"\$\$(.+?)\$\$", re.DOTALL)
_INLINE = re.compile(r"(?<![\\$])\$(?!\s)([^$\n]+(?:\n[^$\n]+)?)(?<!\s)\$([,.;:)，。；：、）]?)")
_THIN = '<mspace width="0.17em"></mspace>'
_FUNCTION = "<mi>(?:log|exp|tanh)</mi>"
_SPACING = (  # what LaTeX knows and MathML has to be told
    (rf"((?:</mi>|</mn>|</msub>|</mstyle>))({_FUNCTION})", rf"\1{_THIN}\2"),
    (rf"({_FUNCTION})(?=<m(?:i|n|sub|sup|o>&#x02211))", rf"\1{_THIN}"),
    (r"(<mo[^>]*>&#x000(?:3D|28);</mo>)<mo>(?=&#x02212;)", r'\1<mo form="prefix">'),
    (r'<mo stretchy="false">(?=&#x0007C;)', '<mo stretchy="false" lspace="0" rspace="0">'),
)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs for every page; code is left alone."""
    pieces = _FENCE.split(markdown)
    return "".join(piece if i % 2 else _rendered(piece) for i, piece in enumerate(pieces))


def _rendered(text: str) -> str:
    text = _BLOCK.sub(lambda m: _block(m[1]), text)
    return _INLINE.sub(lambda m: _inline(m[1].replace("\n", " "), m[2]), text)


def _block(formula: str) -> str:
    return f'<div class="formula">{_mathml(formula, "block")}</div>'


def _inline(formula: str, mark: str) -> str:
    # in a span, because a line that starts with <math> would become a paragraph of its own;
    # with the punctuation mark, which else might start the next line
    return f'<span class="formula">{_mathml(formula, "inline")}{mark}</span>'


def _mathml(formula: str, display: str) -> str:
    text = convert(formula, display=display)
    for found, better in _SPACING:
        text = re.sub(found, better, text)
    # a bar would end the cell of a table
    return text.replace("\n", " ").replace("|", "&#x7C;")
