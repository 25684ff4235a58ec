import dataclasses
import json

from click.testing import CliRunner

from attentropy.cli import main
from attentropy.lab import claims


def call(*arguments):
    return CliRunner().invoke(main, ["claims", *arguments])


def test_one_claim():
    done = call("--id", "001-(61)")
    assert done.exit_code == 0
    assert "001-(61)" in done.output
    assert "1 statements of the documents: 1 false; 0 identities of our own;" in done.output


def test_json_of_a_source():
    rows = json.loads(call("--source", "ID", "--json").stdout)
    assert [row["id"] for row in rows] == [f"ID-{k}" for k in range(1, 16)]
    assert all(row["agrees"] and row["verdict"] == "holds" and row["numbers"] for row in rows)
    assert set(rows[0]) == {
        "id", "source", "document", "section", "original", "statement", "expected", "verdict",
        "agrees", "correction", "numbers",
    }  # fmt: skip
    assert rows[0]["original"] is None


def test_json_quotes_the_document():
    (row,) = json.loads(call("--id", "001-(61)", "--json").stdout)
    assert row["document"] == "熵不变性Softmax的一个快速推导"
    assert row["section"] == "24. 长序列建模"
    assert row["original"].startswith("根据熵的实际值动态调整")


def test_a_differing_verdict_fails(monkeypatch):
    wrong = dataclasses.replace(claims.CLAIMS["ID-4"], expected="false")
    monkeypatch.setitem(claims.CLAIMS, "ID-4", wrong)
    done = call("--id", "ID-4")
    assert done.exit_code == 1
    assert "1 differ from the audit" in done.output
    assert json.loads(call("--id", "ID-4", "--json").stdout)[0]["agrees"] is False


def test_complaints():
    assert "no claim with id 7" in call("--id", "7").output
    assert call("--id", "7").exit_code == 2
    assert "no claim has that id and that source" in call("--source", "005").output
