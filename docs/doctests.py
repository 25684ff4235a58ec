"""Examples in docstrings become blocks of code in the reference, wherever they stand."""

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"(?:^>>> .*\n?(?:^(?!\s*$).*\n?)*(?:\n(?=>>> ))?)+", re.MULTILINE)


class Doctests(griffe.Extension):
    """A line that starts with >>> would be a quotation, three deep, to Markdown."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for every module, class and function that has been read."""
        if obj.docstring:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    """The text with its examples between fences."""
    return _EXAMPLE.sub(lambda found: f"```pycon\n{found[0].rstrip()}\n```\n", text)
