"""Lines of Chinese join without a space, as Chinese is written."""

import re
from typing import Any

_CODE = re.compile(r"(```.*?```)", re.DOTALL)
_WRITING = "[\u3001-\u9fff\uff00-\uffef]"
_BREAK = re.compile(rf"(?<={_WRITING})\n\s*(?={_WRITING})")
_PARAGRAPH = re.compile(r"\n\s*\n")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs for every page; code is left alone."""
    pieces = _CODE.split(markdown)
    return "".join(piece if i % 2 else _joined(piece) for i, piece in enumerate(pieces))


def _joined(text: str) -> str:
    return "\n\n".join(_BREAK.sub("", part) for part in _PARAGRAPH.split(text))
