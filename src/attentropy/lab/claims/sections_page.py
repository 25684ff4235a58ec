"""The page from every section of the documents to what does it here, and back.

python -m attentropy.lab.claims.sections_page [docs/sections.md]
"""

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from attentropy.lab.claims.outline import SourceDocument, documents, done_by
from attentropy.lab.claims.registry import table

_HEAD = """# From the documents to the library, and back

Written by `python -m attentropy.lab.claims.sections_page`; do not edit.

Five Chinese documents are the source of this library. The first tables lead from each of their
sections, under its own heading, to the function, command, figure or experiment that does it, and to
the statements that were [measured](claims.md); the last one leads from those back to the sections.
Headings of references and of code are left out.
"""
_ROOMS = {
    "core.masks": "masks.md",
    "core.scales": "parts.md",
    "core.scores": "parts.md",
    "core.weights": "parts.md",
    "core.results": "attention.md",
    "attention": "attention.md",
    "models": "models.md",
    "training": "training.md",
    "theory": "theory.md",
    "analysis": "analysis.md",
    "nn": "nn.md",
}  # where a name is described: the page under reference/


def resolved(name: str) -> Any:
    """The object that a name of the list stands for; raises if there is none.

    Args:
        name: such as "at.attend", "theory.noise.predict" or "nn.EntropyLoss".
    """
    room, _, rest = name.partition(".")
    if room == "at":
        return getattr(import_module("attentropy"), rest)
    *inner, last = rest.split(".")
    return getattr(import_module(".".join(["attentropy", room, *inner])), last)


def linked(name: str) -> str:
    """A name, a command or a page of the list as Markdown with its link.

    Args:
        name: an entry of `by` in the outline.
    """
    if name.startswith("page:"):
        page = name.removeprefix("page:")
        return f"[{page}]({page})"
    if name.startswith("attentropy lab "):
        return f"[`{name}`](results.md)"
    if name.startswith("attentropy "):
        return f"[`{name}`](reference/cli.md)"
    return f"[`{name}`](reference/{_page(name)})"


def _page(name: str) -> str:
    found = resolved(name)
    home = getattr(found, "__module__", "").removeprefix("attentropy.")
    if name in ("at.causal", "at.full"):
        home = "core.masks"
    return next(page for room, page in _ROOMS.items() if home.startswith(room))


def render() -> str:
    """The whole page as Markdown."""
    parts = [_HEAD, *(_document(one) for one in documents()), _back()]
    return "\n".join(parts)


def _document(document: SourceDocument) -> str:
    title = f"《{document.title}》"
    where = f" ([original]({document.address}))" if document.address else ""
    lines = [f"## {title}\n", f"{document.about[0].upper()}{document.about[1:]}{where}.\n"]
    lines += ["| section | about | done by | measured |", "|---|---|---|---|"]
    for section in document.sections:
        by = ", ".join(map(linked, section.by))
        measured = ", ".join(_claim(id_) for id_ in section.quotes) or "-"
        lines.append(f"| {section.title} | {section.about} | {by} | {measured} |")
    return "\n".join(lines) + "\n"


def _claim(id_: str) -> str:
    return f"{id_} ({table()[id_].expected})"


def _back() -> str:
    lines = ["## Back\n", "| here | sections |", "|---|---|"]
    for name, places in done_by().items():
        said = "; ".join(f"《{title}》 {heading}" for title, heading in places)
        lines.append(f"| {linked(name)} | {said} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    import attentropy.lab.claims  # noqa: F401, fills the table

    target = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/sections.md")
    target.write_text(render(), encoding="utf-8")
    print(target)
