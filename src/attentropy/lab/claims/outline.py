"""The source documents section by section: what implements each section, and its sentences.

outline.json is the one list: documents with their titles, sections with their headings, what
implements them, and the sentence that each claim quotes. The page of sections and the quotations on
the page of claims are written from it.

>>> quoted("001-(61)").section
'24. 长序列建模'
"""

import json
from functools import cache
from importlib.resources import files
from typing import NamedTuple


class DocumentSection(NamedTuple):
    """A section of a document.

    Attributes:
        title: its heading, as given.
        about: the same in a few English words.
        by: what implements it here: names of this library ("at.attend", "theory.noise.predict"),
            commands ("attentropy lab noise") or pages ("page:kernel.md").
        quotes: sentences by the id of the claim that rests on them.
    """

    title: str
    about: str
    by: tuple[str, ...]
    quotes: dict[str, str]


class SourceDocument(NamedTuple):
    """A document.

    Attributes:
        key: the beginning of the ids of its claims.
        title: as given.
        address: where it was published; empty if that is not known.
        about: its subject in a few English words.
        sections: in their order.
    """

    key: str
    title: str
    address: str
    about: str
    sections: tuple[DocumentSection, ...]


class Quoted(NamedTuple):
    """The sentence of a claim, and where it stands."""

    document: str
    section: str
    words: str


@cache
def documents() -> tuple[SourceDocument, ...]:
    """The five documents in order."""
    text = (files("attentropy.lab.claims") / "outline.json").read_text(encoding="utf-8")
    found = []
    for one in json.loads(text):
        sections = tuple(DocumentSection(**{**s, "by": tuple(s["by"])}) for s in one["sections"])
        found.append(SourceDocument(**{**one, "sections": sections}))
    return tuple(found)


@cache
def _quotations() -> dict[str, Quoted]:
    return {
        id_: Quoted(document.title, section.title, words)
        for document in documents()
        for section in document.sections
        for id_, words in section.quotes.items()
    }


def quoted(id_: str) -> Quoted | None:
    """The sentence that a claim rests on; None for an identity of this library.

    Args:
        id_: of the claim.
    """
    return _quotations().get(id_)


def done_by() -> dict[str, list[tuple[str, str]]]:
    """Each implementation, with the (document title, heading) of the sections it implements."""
    found: dict[str, list[tuple[str, str]]] = {}
    for document in documents():
        for section in document.sections:
            for name in section.by:
                found.setdefault(name, []).append((document.title, section.title))
    return dict(sorted(found.items()))


def title_of(key: str) -> str | None:
    """The title of a document; None for another source of claims.

    Args:
        key: "000" to "004".
    """
    return next((one.title for one in documents() if one.key == key), None)
