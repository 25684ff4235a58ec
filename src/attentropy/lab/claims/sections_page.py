"""The page that links every section of the documents to its implementation, and back.

python -m attentropy.lab.claims.sections_page [docs]

writes sections.md and zh/sections.md.
"""

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from attentropy.lab.claims.outline import SourceDocument, documents, done_by
from attentropy.lab.claims.registry import table

_WORDS: dict[str, dict[str, Any]] = {
    "en": {
        "head": """# From the documents to the library, and back

Written by `python -m attentropy.lab.claims.sections_page`; do not edit.

Five Chinese documents are the source of this library. The first tables lead from each of their
sections, under its own heading, to the function, command, figure or experiment that does it, and to
the statements that were [measured](claims.md); the last one leads from those back to the sections.
Headings of references and of code are left out.
""",
        "columns": "| section | about | done by | measured |\n|---|---|---|---|",
        "original": "original",
        "back": "## Back\n\n| here | sections |\n|---|---|",
        "verdicts": {},
    },
    "zh": {
        "head": """<!-- written by python -m attentropy.lab.claims.sections_page -->

# 从文档到本库，再从本库到文档

本库源自五篇中文文档。前面的表从各篇的每一节（标题照原文）指向实现它的函数、命令、图或实验，
以及逐条[核查过的论断](claims.md)；最后一张表从这些反查各节。参考文献和代码的标题从略。
""",
        "columns": "| 章节 | 由什么实现 | 核查过的论断 |\n|---|---|---|",
        "original": "原文",
        "back": "## 反查\n\n| 本库 | 章节 |\n|---|---|",
        "verdicts": {
            "holds": "成立", "cond": "有条件成立", "approx": "近似成立", "false": "不成立"
        },
    },
}  # fmt: skip
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


def render(language: str = "en") -> str:
    """The whole page as Markdown.

    Args:
        language: "en" or "zh".
    """
    words = _WORDS[language]
    parts = [words["head"], *(_document(one, language) for one in documents()), _back(words)]
    return "\n".join(parts)


def _document(document: SourceDocument, language: str) -> str:
    words = _WORDS[language]
    where = f" ([{words['original']}]({document.address}))" if document.address else ""
    said = f"{document.about[0].upper()}{document.about[1:]}{where}.\n"
    if language == "zh":
        said = f"{_source(document)}\n"
    lines = [f"## 《{document.title}》\n", said, words["columns"]]
    for section in document.sections:
        by = ", ".join(map(linked, section.by))
        measured = ", ".join(_claim(id_, words) for id_ in section.quotes) or "-"
        about = f" {section.about} |" if language == "en" else ""
        lines.append(f"| {section.title} |{about} {by} | {measured} |")
    return "\n".join(lines) + "\n"


def _source(document: SourceDocument) -> str:
    """Where a document was published, in Chinese."""
    if document.address:
        return f"原文见 <{document.address}>。"
    return "来源不详" + (
        "，原文没有总标题，这里用的是其小标题。" if document.key == "003" else "。"
    )


def _claim(id_: str, words: dict[str, Any]) -> str:
    verdict = table()[id_].expected
    return f"{id_} ({words['verdicts'].get(verdict, verdict)})"


def _back(words: dict[str, Any]) -> str:
    lines = [words["back"]]
    for name, places in done_by().items():
        said = "; ".join(f"《{title}》 {heading}" for title, heading in places)
        lines.append(f"| {linked(name)} | {said} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the page in both languages below the folder named, docs by default."""
    import attentropy.lab.claims  # noqa: F401, fills the table

    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "docs")
    for language, name in (("en", "sections.md"), ("zh", "zh/sections.md")):
        (folder / name).write_text(render(language), encoding="utf-8")


if __name__ == "__main__":
    main()
