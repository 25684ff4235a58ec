"""Runs that a Monitor stored, read for the page."""

import sqlite3

import pytest
from click.testing import CliRunner

from attentropy.cli import main
from attentropy.report.runstore import is_run, read_run
from tests.report.synthetic_run import make_run, write_run


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "pilot.db"
    write_run(path, make_run(layers=6, heads=8, samples=60))
    return path


def test_what_was_stored_is_shown(stored):
    run, made = read_run(stored), make_run()
    assert (run.name, run.layers, run.heads, run.steps) == (
        "pilot",
        made.layers,
        made.heads,
        made.steps,
    )
    assert run.metrics["max_logit"][5][2] == pytest.approx(
        made.metrics["max_logit"][5][2], rel=1e-6
    )
    assert run.losses == made.losses
    assert [(a.step, a.name, a.severity, a.heads) for a in run.alarms] == [
        (a.step, a.name, a.severity, [*a.heads]) for a in made.alarms
    ]
    assert not run.running


def test_other_databases_are_no_runs(stored, tmp_path):
    assert is_run(stored)
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as db:
        db.execute("CREATE TABLE meta (key TEXT, value TEXT)")
    text = tmp_path / "text.db"
    text.write_text("no database")
    assert not any(is_run(path) for path in (other, text, tmp_path / "absent.db", tmp_path))


def test_report_by_file_and_by_name(stored, tmp_path, monkeypatch):
    monkeypatch.setenv("ATTENTROPY_RUNS", str(stored.parent))
    result = CliRunner().invoke(main, ["report", "pilot", "--out", str(tmp_path / "a.html")])
    assert result.exit_code == 0, result.output
    assert "pilot · training run" in (tmp_path / "a.html").read_text(encoding="utf-8")
    result = CliRunner().invoke(main, ["report", str(stored)])
    assert result.exit_code == 0
    assert stored.with_suffix(".html").exists()
    result = CliRunner().invoke(main, ["report", "absent"])
    assert result.exit_code == 1
    assert "there is no run 'absent'" in result.stderr
