"""attentropy export: every number of a run as a table."""

import csv
import io
import json

import pytest

from attentropy.core.statistics import NAMES


def test_export_as_csv(call, run, tmp_path):
    rows = list(csv.DictReader(io.StringIO(call("export", run, "--csv"))))
    assert len(rows) == 2 * 2 * 3
    assert rows[-1]["step"] == "10"
    assert (rows[-1]["layer"], rows[-1]["head"]) == ("l1", "2")
    assert float(rows[-1]["entropy"]) == 4.0
    assert rows[-1]["output_norm"] == ""
    call("export", run, "--out", "table.csv")
    assert (tmp_path / "table.csv").read_text().startswith("step,loss,layer,head,entropy")


def test_export_as_json(call, run, tmp_path):
    rows = json.loads(call("export", run, "--json"))
    assert len(rows) == 2 * 2 * 3
    assert (rows[-1]["layer"], rows[-1]["head"], rows[-1]["entropy"]) == ("l1", 2, 4.0)
    assert rows[-1]["output_norm"] is None
    call("export", run, "--json", "--out", "table.json")
    assert json.loads((tmp_path / "table.json").read_text()) == rows


def test_export_as_parquet(call, run, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    call("export", run, "--parquet")
    table = parquet.read_table(tmp_path / "mine.parquet")
    assert table.num_rows == 12
    assert table["entropy"].to_pylist()[-1] == 4.0
    assert table["output_norm"].null_count == 12


def test_the_ending_of_the_file_says_the_form(call, run, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    for name in ("a.json", "a.parquet", "a.csv", "a.txt"):
        call("export", run, "--out", name)
    lines = len((tmp_path / "a.csv").read_text().splitlines()) - 1
    assert len(json.loads((tmp_path / "a.json").read_text())) == lines > 0
    assert parquet.read_table(tmp_path / "a.parquet").num_rows == lines
    assert (tmp_path / "a.txt").read_text() == (tmp_path / "a.csv").read_text()
    call("export", run, "--csv", "--out", "b.json")
    assert (tmp_path / "b.json").read_text() == (tmp_path / "a.csv").read_text()


def test_an_unwritable_file(call, run):
    assert "cannot write" in call("export", run, "--out", "no/such/dir/x.csv", code=2)


def test_columns_are_those_of_the_table(call, run):
    header = call("export", run, "--csv").splitlines()[0].split(",")
    assert header == ["step", "loss", "layer", "head", *NAMES]
    assert list(json.loads(call("export", run, "--json"))[0]) == header


def test_a_run_that_is_not_there(call):
    assert "there is no run 'x'" in call("export", "x", code=2)
