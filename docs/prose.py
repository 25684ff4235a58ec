"""Checks the prose of pages, docstrings, messages and comments against a list of ours.

    python docs/prose.py            # every page and every file of src; exit code 1 for a complaint
    python docs/prose.py README.md  # the files named

docs/prose.toml lists expressions that must not appear, each with what to write instead: words that
say in many syllables what a short word says, sentences that must be read twice, second names for
things that have one, and talk about how this library came about. A word that stands twice in a row
is found too. Code, formulas, links and examples are left out.
"""

import ast
import io
import re
import sys
import tokenize
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
TWICE = re.compile(r"(?<![\w.-])(?!log )([a-z]{2,})(?: |\n *)\1(?![\w./-])")
HIDDEN = (
    re.compile(r"\A---\n.*?\n---\n", re.DOTALL),  # front matter
    re.compile(r"^( *)(```|~~~).*?^\1\2$", re.DOTALL | re.MULTILINE),
    re.compile(r"<!--.*?-->|<svg.*?</svg>|<[^>\n]*>", re.DOTALL),
    re.compile(r"\$\$.*?\$\$|\$[^$\n]+\$", re.DOTALL),
    re.compile(r"``[^`]*``|`[^`]*`"),
    re.compile(r'"[\w.-]+"'),  # a value
    re.compile(r"(?<=\])\([^)\s]*\)"),
    re.compile(r"https?://\S+"),
)
EXAMPLE = re.compile(r"^ *>>> .*?(?=^ *$|\Z)", re.DOTALL | re.MULTILINE)


class Rules:
    """Expressions that must not appear, as whole words.

    Args:
        table: expressions, and what to write instead.
    """

    def __init__(self, table: dict[str, str]) -> None:
        self._each = [(_whole(found), instead) for found, instead in table.items()]
        self._any = _whole("|".join(f"(?:{found})" for found in table))
        self._each.append((TWICE, "the word once"))

    def __call__(self, text: str) -> Iterator[tuple[re.Match[str], str]]:
        """What is found in a text, and what to write instead.

        Args:
            text: prose.
        """
        if self._any.search(text) or TWICE.search(text):
            for pattern, instead in self._each:
                for found in pattern.finditer(text):
                    yield found, instead


def _whole(expression: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![\w-])(?:{expression})(?![\w-])", re.IGNORECASE)


class Complaint(NamedTuple):
    """Where an expression appears.

    Attributes:
        line: counted from 1.
        words: what is there.
        instead: what to write.
    """

    line: int
    words: str
    instead: str


def rules(path: Path = ROOT / "docs" / "prose.toml") -> Rules:
    """The list.

    Args:
        path: of the list: tables of expressions with what to write instead.
    """
    tables = tomllib.loads(path.read_text(encoding="utf-8"))
    return Rules({found: instead for table in tables.values() for found, instead in table.items()})


def blanked(text: str, hidden: Iterable[re.Pattern[str]]) -> str:
    """The text with spaces for what is hidden; lines keep their numbers.

    Args:
        text: any text.
        hidden: what is no prose.
    """
    for pattern in hidden:
        text = pattern.sub(lambda found: re.sub(r"[^\n]", " ", found.group()), text)
    return text


def of_markdown(text: str) -> list[tuple[int, str]]:
    """The prose of a page: the line at which it begins, and the text.

    Args:
        text: of the page.
    """
    return [(1, blanked(text, HIDDEN))]


def of_python(text: str) -> list[tuple[int, str]]:
    """Docstrings, strings of several words and comments of a module, with their lines.

    Args:
        text: of the module.
    """
    return [*_strings(text), *_comments(text)]


def _strings(text: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, blanked(node.value, (EXAMPLE, *HIDDEN[1:]))


def _comments(text: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], blanked(token.string, HIDDEN[2:])


def complaints(prose: list[tuple[int, str]], listed: Rules) -> list[Complaint]:
    """Expressions of the list in a text, and words that stand twice.

    Args:
        prose: what `of_markdown` or `of_python` gave.
        listed: the list.
    """
    return sorted(
        Complaint(line + text.count("\n", 0, found.start()), found.group(), instead)
        for line, text in prose
        for found, instead in listed(text)
    )


def files() -> list[Path]:
    """Pages and modules that people read.

    Left out are Chinese pages, stored results, and the table of models, which quotes messages of
    other libraries; the prose above that table is in tests/models/zoo/page.py.
    """
    left_out = {ROOT / "docs" / name for name in ("zh", "results", "models.md")}
    pages = [page for page in ROOT.glob("docs/**/*.md") if not left_out & {page, *page.parents}]
    modules = [*ROOT.glob("src/**/*.py"), *ROOT.glob("examples/*.py")]
    return sorted([*ROOT.glob("*.md"), *pages, *modules, ROOT / "tests/models/zoo/page.py"])


def main(names: list[str]) -> int:
    """Print every complaint; 1 if there is one.

    Args:
        names: files to check; all if empty.
    """
    listed, count = rules(), 0
    for path in [Path(name) for name in names] or files():
        text = path.read_text(encoding="utf-8")
        prose = of_python(text) if path.suffix == ".py" else of_markdown(text)
        for line, words, instead in complaints(prose, listed):
            count += 1
            sys.stdout.write(f"{path}:{line}: “{' '.join(words.split())}”: write {instead}\n")
    return min(count, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
