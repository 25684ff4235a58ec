"""A catalogue of phrases, and how a finished sentence finds its own.

A phrase is an English sentence with places, such as `{count:number} tokens`. Sentences are
translated when they are shown and not when they are made: files and Python values hold English
alone, and every scan.json can be read in each language. The page of a report looks sentences up in
the same way (report/assets/language.js).

A place is one of

    {name}         any text, which stays as it is
    {name:number}  a number, which stays as it is
    {name:word}    a word, which stays as it is
    {name:told}    a text that is looked up itself
    {name:list}    texts with commas between them, each of which is looked up
"""

import json
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

PLACE = re.compile(r"\{(\w+)(?::(number|word|told|list))?\}")
NUMBER = r"[-+−]?[0-9][0-9.,]*(?:e[-+]?[0-9]+)?(?: ± [0-9.]+)?%?|nan|inf|–"
SENTENCE = re.compile(r"(?<=[.!?]) (?=[A-Z0-9-])")
INSIDE = {"number": NUMBER, "word": r"\S+"}
AREAS = ("commands", "sentences", "statistics", "page", "claims", "lab")
ERRORS = "errors"  # not among AREAS: a phrase such as `{path} does not exist` fits too much


class Phrases:
    """Translations of phrases, asked with finished sentences.

    Args:
        table: English phrases with their translations; both have the same places.

    >>> zh = Phrases({"{n:number} heads: {name:told}": "{n} 个头：{name}", "sink": "注意力汇"})
    >>> zh("12 heads: sink"), zh("12 heads: mine"), zh("Nothing of that.")
    ('12 个头：注意力汇', '12 个头：mine', 'Nothing of that.')
    """

    def __init__(self, table: Mapping[str, str]) -> None:
        self._whole = {text: said for text, said in table.items() if not PLACE.search(text)}
        places = sorted((text for text in table if PLACE.search(text)), key=_says, reverse=True)
        self._parts = [(*_ends(text), text, table[text]) for text in places]

    def __call__(self, text: str) -> str:
        """The translation of a text; the text itself where there is none.

        Args:
            text: a finished sentence, or several.
        """
        return self.known(text) or self._sentences(text) or text

    def known(self, text: str) -> str | None:
        """The translation of a text that is one phrase; None where there is none.

        Args:
            text: a finished sentence.
        """
        if text in self._whole:
            return self._whole[text]
        for begin, end, phrase, said in self._parts:
            likely = text.startswith(begin) and text.endswith(end)
            found = _pattern(phrase).fullmatch(text) if likely else None
            if found:
                return self._filled(said, phrase, found)
        return None

    def _filled(self, said: str, phrase: str, found: re.Match[str]) -> str:
        values = {p[1]: self._value(found[p[1]], p[2]) for p in PLACE.finditer(phrase)}
        return PLACE.sub(lambda place: values[place[1]], said)

    def _value(self, text: str, kind: str | None) -> str:
        if kind == "list":
            return "、".join(self(part) for part in text.split(", "))
        return self(text) if kind == "told" else text

    def _sentences(self, text: str) -> str | None:
        parts = SENTENCE.split(text)
        said = [self.known(part) for part in parts]
        if not any(said):
            return None
        return "".join(one or f"{part} " for one, part in zip(said, parts, strict=True)).strip()


def _says(phrase: str) -> tuple[int, int]:
    """How much a phrase says: characters outside its places, then places for numbers alone."""
    return len(PLACE.sub("", phrase)), sum(place[2] in INSIDE for place in PLACE.finditer(phrase))


def _ends(phrase: str) -> tuple[str, str]:
    """What a phrase begins and ends with, before and after its places."""
    first, *_, last = PLACE.sub("\0", phrase).split("\0")
    return first, last


@cache
def _pattern(phrase: str) -> re.Pattern[str]:
    """A regular expression of the sentences that a phrase makes."""
    parts, end = [], 0
    for place in PLACE.finditer(phrase):
        inside = INSIDE.get(place[2], ".+?")
        parts += [re.escape(phrase[end : place.start()]), f"(?P<{place[1]}>{inside})"]
        end = place.end()
    return re.compile("".join(parts) + re.escape(phrase[end:]), re.DOTALL)


def table(language: str, *areas: str) -> dict[str, str]:
    """The phrases of one language, English first.

    Args:
        language: such as "zh".
        areas: of AREAS, or ERRORS; all of AREAS if none is given.
    """
    folder = files("attentropy.core.language") / language
    found: dict[str, str] = {}
    for area in areas or AREAS:
        found |= json.loads((folder / f"{area}.json").read_text(encoding="utf-8"))
    return found


@cache
def phrases(language: str) -> Phrases:
    """All phrases of one language but those of errors, read once.

    Args:
        language: such as "zh".
    """
    return Phrases(table(language))


@cache
def error_phrases(language: str) -> Phrases:
    """The phrases of errors in one language, and those that errors quote, read once.

    Args:
        language: such as "zh".
    """
    return Phrases(table(language, "sentences", "commands", ERRORS))
