"""attentropy runs: what is in the directory of runs."""

import json

import pytest

from attentropy.training.runstore import RunStore
from tests.training.runstore.test_writer import sample


def test_runs_lists_them(call, run, tmp_path):
    (tmp_path / "broken.db").write_text("x" * 99)
    listed = {line["run"]: line for line in json.loads(call("runs", "--json"))}
    assert listed["mine"]["step"] == 10
    assert listed["mine"]["loss"] == 3.25
    assert "is not a run of attentropy" in listed["broken"]["error"]
    assert "mine" in call("runs")
    assert call("runs", "--dir", str(tmp_path / "none")).startswith("no runs in")


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_a_name_is_never_cut(call, monkeypatch, columns):
    name = "a-rather-long-name-of-a-run-that-one-must-copy-" + "x" * 40
    store = RunStore(name)
    store(sample(1.0, loss=3.5), 0)
    store.close()
    monkeypatch.setenv("COLUMNS", str(columns))
    listed = call("runs")
    assert name in listed
    assert ("started" in listed) == (columns == 200)


def test_a_run_that_cannot_be_read_is_listed_with_the_reason(call, run, tmp_path):
    (tmp_path / "broken.db").write_text("x" * 99)
    listed = call("runs")
    assert "unreadable" in listed
    assert "broken: " in listed
    assert "is not a run of attentropy" in listed
