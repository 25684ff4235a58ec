"""attentropy runs: what is in the directory of runs."""

import json


def test_runs_lists_them(call, run, tmp_path):
    (tmp_path / "broken.db").write_text("x" * 99)
    listed = {line["run"]: line for line in json.loads(call("runs", "--json"))}
    assert listed["mine"]["step"] == 10
    assert listed["mine"]["loss"] == 3.25
    assert "is no run of attentropy" in listed["broken"]["error"]
    assert "mine" in call("runs")
    assert call("runs", "--dir", str(tmp_path / "none")).startswith("no runs in")
