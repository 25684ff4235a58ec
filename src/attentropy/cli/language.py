"""Help and messages in the language of the reader: `--lang`, else LANG, LC_ALL and LC_MESSAGES."""

import itertools
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

from attentropy.core.language.speaking import LANGUAGES, spoken, told, wanted

_RAW = "\b"
_EXTRA = re.compile(r"(.*?)(?:(?<=\S)  )?\[([^][]*)\]", re.DOTALL)
_PIECE = re.compile(r"\s+|[（“《]*(?:[\u2e80-\u9fff]|[^\s\u2e80-\uffef]+)[，。；：、）”》！？…]*")


def language_option() -> click.Option:
    """The option --lang, which every command gets; `language_of` has read it by then."""
    return click.Option(
        ["--lang"],
        type=click.Choice(LANGUAGES),
        expose_value=False,
        help="Language of help and messages; by default that of LANG.",
    )


def language_of(args: Sequence[str]) -> str:
    """The language that a command line asks for, wherever --lang stands in it.

    Args:
        args: words of the command line.

    >>> language_of(["scan", "--help", "--lang", "zh"]), language_of(["--lang=en", "scan"])
    ('zh', 'en')
    """
    options = itertools.takewhile(lambda word: word != "--", args)
    words = " ".join(options).replace("--lang=", "--lang ").split()
    given = [after for word, after in itertools.pairwise(words) if word == "--lang"]
    return given[-1] if given and given[-1] in LANGUAGES else wanted()


class HelpInLanguage(click.HelpFormatter):
    """Writes help in the language in use; in English it is click's own."""

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        """Write how a command is called.

        Args:
            prog: the name of the command.
            args: what follows it.
            prefix: what comes before it, "Usage:" if not given.
        """
        if spoken() != "en":
            prefix = told("Usage:")
            args = args.replace("[OPTIONS]", told("[OPTIONS]"))
            args = args.replace("COMMAND [ARGS]...", told("COMMAND [ARGS]..."))
        super().write_usage(prog, args, prefix)

    def write_heading(self, heading: str) -> None:
        """Write the name of a part of the help.

        Args:
            heading: the name, in the language in use.
        """
        mark = ":" if spoken() == "en" else "："
        self.write(f"{'':>{self.current_indent}}{heading}{mark}\n")

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        """A part of the help, indented.

        Args:
            name: its heading, in English.
        """
        with super().section(told(name)):
            yield

    def write_text(self, text: str) -> None:
        """Write paragraphs.

        Args:
            text: in English.
        """
        if spoken() == "en":
            super().write_text(text)
            return
        edge = " " * self.current_indent
        parts = [_paragraph(part, self.width - len(edge)) for part in text.split("\n\n")]
        self.write("\n\n".join("\n".join(edge + line for line in lines) for lines in parts) + "\n")

    def write_dl(
        self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2
    ) -> None:
        """Write names and what they mean, in two columns.

        Args:
            rows: a name and its meaning each.
            col_max: columns of a name at most.
            col_spacing: columns between the two.
        """
        rows = list(rows)
        if spoken() != "en":
            first = min(max(len(name) for name, _ in rows), col_max) + col_spacing
            width = max(self.width - first - 2, 10)
            rows = [(name, _as_they_are(wrapped(_told_help(said), width))) for name, said in rows]
        super().write_dl(rows, col_max, col_spacing)


class LanguageContext(click.Context):
    """A context whose help is written by `HelpInLanguage`."""

    formatter_class = HelpInLanguage


def _as_they_are(lines: list[str]) -> str:
    """Lines that click does not wrap again."""
    return "\n".join([_RAW, *lines])


def _paragraph(text: str, width: int) -> list[str]:
    lines = text.split("\n")
    if lines[0] == _RAW:
        return [line[: len(line) - len(line.lstrip())] + told(line.strip()) for line in lines[1:]]
    return wrapped(told(" ".join(text.split())), width)


def _told_help(text: str) -> str:
    """The help of an option; what click adds in brackets is translated word by word."""
    found = _EXTRA.fullmatch(text)
    if found is None:
        return told(text)
    extra = "；".join(told(part) for part in found[2].split("; "))
    return f"{told(found[1])} [{extra}]".strip()


def wrapped(text: str, width: int) -> list[str]:
    """Lines of at most so many columns, in which a Chinese character takes two.

    A line breaks at spaces and beside Chinese characters, and does not begin with a full stop.

    Args:
        text: one paragraph.
        width: columns of the terminal.

    >>> wrapped("熵是 log n 的一部分。", 12)
    ['熵是 log n', '的一部分。']
    """
    lines, used = [""], 0
    for piece in _PIECE.findall(text):
        size = cells(piece)
        if used + size > width and used:
            lines, used = [*lines, ""], 0
        if used or not piece.isspace():
            lines[-1] += piece
            used += size
    return [line.rstrip() for line in lines]


def cells(text: str) -> int:
    """Columns that a text takes in a terminal.

    Args:
        text: on one line.

    >>> cells("熵 H")
    4
    """
    return sum(1 + (unicodedata.east_asian_width(sign) in "WF") for sign in text)


def with_language(command: Any) -> Any:
    """Give a command its option --lang, and help in the language in use.

    Args:
        command: of click.
    """
    command.params.append(language_option())
    command.context_class = LanguageContext
    return command
