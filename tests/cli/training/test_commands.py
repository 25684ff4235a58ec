"""attentropy watch, runs and export on a run store."""

import csv
import io
import json

import pytest
from click.testing import CliRunner

from attentropy.cli import main
from attentropy.training.alarms import Ring
from attentropy.training.runstore import RunStore
from tests.training.test_runstore import sample


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.setenv("ATTENTROPY_RUNS", str(tmp_path))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run():
    store = RunStore("mine")
    ring = Ring(10, "logit growth", "critical", ((0, 1),), "logits reached 60", 10)
    store(sample(1.0, loss=3.5), 0)
    store(sample(2.0, rings=[ring], loss=3.25), 10)
    store.close()
    return "mine"


def call(*arguments, code=0):
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == code, result.output
    return result.output


def test_watch_shows_the_newest_sample_and_its_alarms(run):
    shown = call("watch", run)
    assert "mine: ended, step 10, loss 3.25" in shown
    assert "l0" in shown
    assert "step 10: logits reached 60" in shown
    assert call("watch", run, "--once").strip() == shown.strip()


def test_watch_as_json(run):
    data = json.loads(call("watch", run, "--json"))
    assert data["step"] == 10
    assert data["statistics"]["entropy"] == [[2.0, 3.0, 4.0]] * 2
    assert data["statistics"]["output_norm"][0] == [None] * 3
    assert data["alarms"][0]["text"] == "logits reached 60"


def test_runs_lists_them(run, tmp_path):
    (tmp_path / "broken.db").write_text("x" * 99)
    listed = {line["run"]: line for line in json.loads(call("runs", "--json"))}
    assert listed["mine"]["step"] == 10
    assert listed["mine"]["loss"] == 3.25
    assert "is no run of attentropy" in listed["broken"]["error"]
    assert "mine" in call("runs")
    assert call("runs", "--dir", str(tmp_path / "none")).startswith("no runs in")


def test_export_as_csv(run, tmp_path):
    rows = list(csv.DictReader(io.StringIO(call("export", run, "--csv"))))
    assert len(rows) == 2 * 2 * 3
    assert rows[-1]["step"] == "10"
    assert (rows[-1]["layer"], rows[-1]["head"]) == ("l1", "2")
    assert float(rows[-1]["entropy"]) == 4.0
    assert rows[-1]["output_norm"] == ""
    call("export", run, "--out", "table.csv")
    assert (tmp_path / "table.csv").read_text().startswith("step,loss,layer,head,entropy")


def test_export_as_json(run, tmp_path):
    rows = json.loads(call("export", run, "--json"))
    assert len(rows) == 2 * 2 * 3
    assert (rows[-1]["layer"], rows[-1]["head"], rows[-1]["entropy"]) == ("l1", 2, 4.0)
    assert rows[-1]["output_norm"] is None
    call("export", run, "--json", "--out", "table.json")
    assert json.loads((tmp_path / "table.json").read_text()) == rows


def test_export_as_parquet(run, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    call("export", run, "--parquet")
    table = parquet.read_table(tmp_path / "mine.parquet")
    assert table.num_rows == 12
    assert table["entropy"].to_pylist()[-1] == 4.0
    assert table["output_norm"].null_count == 12


def test_the_ending_of_the_file_says_the_form(run, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    for name in ("a.json", "a.parquet", "a.csv", "a.txt"):
        call("export", run, "--out", name)
    lines = len((tmp_path / "a.csv").read_text().splitlines()) - 1
    assert len(json.loads((tmp_path / "a.json").read_text())) == lines > 0
    assert parquet.read_table(tmp_path / "a.parquet").num_rows == lines
    assert (tmp_path / "a.txt").read_text() == (tmp_path / "a.csv").read_text()
    call("export", run, "--csv", "--out", "b.json")
    assert (tmp_path / "b.json").read_text() == (tmp_path / "a.csv").read_text()


@pytest.mark.parametrize("command", ["watch", "export"])
def test_a_run_that_is_not_there(command):
    assert "there is no run 'x'" in call(command, "x", code=1)


def test_an_unwritable_file(run):
    assert "cannot write" in call("export", run, "--out", "no/such/dir/x.csv", code=1)
