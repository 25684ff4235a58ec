"""The help of every command, asked of the commands themselves while the page is built."""

import sys
from pathlib import Path
from typing import Any

PLACE = "<!-- commands -->"


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Called by mkdocs for every page; only those with the mark change."""
    if PLACE not in markdown:
        return markdown
    return markdown.replace(PLACE, _commands("zh" if page.file.src_uri[:3] == "zh/" else "en"))


def _commands(language: str) -> str:
    sys.path.insert(0, str(Path(__file__).parent.parent / "src"))
    from attentropy.cli import GROUPS, main
    from attentropy.core.language.speaking import speaking, told

    with speaking(language):
        parts = [_block(main, "attentropy")]
        for group in GROUPS:
            for name in group.names:
                command = main.get_command(None, name)  # type: ignore[arg-type]
                block = _block(command, f"attentropy {name}")
                parts.append(f"## {name}\n\n*{told(group.heading)}*\n\n{block}")
    return "\n\n".join(parts)


def _block(command: Any, name: str) -> str:
    context = command.make_context(name, [], resilient_parsing=True, terminal_width=78)
    return f"```text\n{command.get_help(context)}\n```"
