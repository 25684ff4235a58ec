"""The claims that one module of documents registers, and what is measured for them."""

import json
from pathlib import Path

from attentropy.lab.claims import CLAIMS

AUDIT = json.loads((Path(__file__).parents[1] / "audit.json").read_text(encoding="utf-8"))


def claims_of(module):
    """Ids of the claims whose measure is written in the module."""
    return [id_ for id_, claim in CLAIMS.items() if claim.measure.__module__ == module.__name__]


def verdict(id_):
    """The verdict that the measurement gives; it must come with numbers."""
    result = CLAIMS[id_].measure()
    assert result.numbers
    return result.verdict


def numbers(id_):
    """The numbers that a claim is judged by."""
    return CLAIMS[id_].measure().numbers
