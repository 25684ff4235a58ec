"""The help of every command, asked of the commands themselves while the page is built."""

import sys
from pathlib import Path
from typing import Any

PLACE = "<!-- commands -->"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs for every page; only the one with the mark changes."""
    return markdown.replace(PLACE, _commands()) if PLACE in markdown else markdown


def _commands() -> str:
    sys.path.insert(0, str(Path(__file__).parent.parent / "src"))
    from attentropy.cli import GROUPS, main

    parts = [_block(main, "attentropy")]
    for group in GROUPS:
        for name in group.names:
            command = main.get_command(None, name)  # type: ignore[arg-type]
            block = _block(command, f"attentropy {name}")
            parts.append(f"## {name}\n\n*{group.heading}*\n\n{block}")
    return "\n\n".join(parts)


def _block(command: Any, name: str) -> str:
    context = command.make_context(name, [], resilient_parsing=True, terminal_width=78)
    return f"```text\n{command.get_help(context)}\n```"
