"""The table of claims; the audit's ids and verdicts are in audit.json, documents/ measures them."""

import json
import re
import sys
from importlib import import_module
from pathlib import Path

import pytest

from attentropy.core import scales
from attentropy.lab.claims import _FILES, CLAIMS, find
from tests.lab.claims.documents.measured import claims_of

HERE = Path(__file__).parent
AUDIT = json.loads((HERE / "audit.json").read_text(encoding="utf-8"))


def test_every_claim_belongs_to_a_document_that_is_tested():
    known = [
        id_
        for name in _FILES
        for id_ in claims_of(import_module(f"attentropy.lab.claims.documents.{name}"))
    ]
    assert known == list(CLAIMS)
    assert all((HERE / "documents" / f"test_{name}.py").exists() for name in _FILES)


def test_every_checkable_row_of_the_audit_is_there():
    assert {id_: claim.expected for id_, claim in CLAIMS.items()} == AUDIT


def test_counts():
    said = [claim for claim in CLAIMS.values() if claim.of_documents]
    assert (len(CLAIMS), len(said)) == (259, 232)
    assert sum(claim.expected == "false" for claim in said) == 34


@pytest.mark.parametrize(
    "page", ["README.md", "docs/explanation/mathematics.md", "docs/zh/explanation/mathematics.md"]
)
def test_pages_count_the_statements_of_the_documents(page):
    text = (HERE.parents[2] / page).read_text(encoding="utf-8")
    assert re.search(r"\b232\b", text)
    assert re.search(r"\b34\b", text)


@pytest.mark.parametrize(
    ("id_", "name"),
    [
        ("001-(2)", "entropy"),
        ("000-(46)", "softmax"),
        ("001-§29", "softmax"),
        ("001-§21", "LogLength"),
        ("000-(77)", "softmax"),
    ],
)
def test_a_check_notices_that_what_it_rests_on_is_5_percent_off(id_, name, monkeypatch):
    measure = CLAIMS[id_].measure
    module = sys.modules[measure.__module__]
    if not hasattr(module, name):  # imported when it is measured
        module = scales
    right = getattr(module, name)

    def off(*given):
        found = right(*given)
        if callable(found):
            return lambda width, n: found(width, n) ** 1.05
        return 0.95 * found

    monkeypatch.setattr(module, name, off)
    assert measure().verdict != CLAIMS[id_].expected


def test_statements_are_texts_of_their_own():
    for claim in CLAIMS.values():
        assert claim.statement
        assert claim.correction
        assert claim.source in {"000", "001", "002", "003", "004", "ID", "REM"}


def test_measuring_twice_gives_the_same_numbers():
    for id_ in ("000-(16)", "001-(61)", "REM-9"):
        assert CLAIMS[id_].measure() == CLAIMS[id_].measure()


def test_finding():
    assert [claim.id for claim in find(("001-(61)",))] == ["001-(61)"]
    assert [claim.id for claim in find(("000-(3)-(5)",))] == ["000-(3)–(5)"]
    assert {claim.source for claim in find(sources=("002", "ID"))} == {"002", "ID"}
    with pytest.raises(KeyError, match="no claim with id 009-x"):
        find(("009-x",))


def test_the_page_lists_every_claim():
    page = (HERE.parents[2] / "docs" / "claims.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| ") and "| id |" not in line]
    assert [row.split(" | ")[0].removeprefix("| ") for row in rows] == list(CLAIMS)
    for row in rows:
        id_ = row.split(" | ")[0].removeprefix("| ")
        assert f" | {CLAIMS[id_].expected} | " in row
