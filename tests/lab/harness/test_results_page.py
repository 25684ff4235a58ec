import json
from pathlib import Path

from attentropy.lab.harness import registry, results_page
from attentropy.lab.harness.run_plan import RunPlan
from attentropy.lab.harness.runner import run
from tests.lab.harness.toy import TOY

ROOT = Path(__file__).parents[3]


def test_the_full_run_is_preferred_and_figures_are_linked(tmp_path, monkeypatch):
    monkeypatch.setattr(results_page, "HOMES", {"toy": ""})
    monkeypatch.setattr(results_page, "find", lambda name: TOY)
    run(RunPlan(TOY, seeds=1), tmp_path / "runs/a")
    run(RunPlan(TOY, seeds=1, quick=True), tmp_path / "runs/b")
    (tmp_path / "runs/a/remarks.txt").write_text("Its alarms are of another day.\n")
    text = results_page.page(tmp_path / "runs", tmp_path / "docs/results.md")
    assert text.endswith("\nIts alarms are of another day.\n")
    assert "## toy\n" in text
    assert "(quick run)" not in text
    assert "![H](../runs/a/h.png)" in text


def test_the_committed_page_is_what_the_committed_runs_give(monkeypatch):
    monkeypatch.chdir(ROOT)
    written = Path("docs/results.md").read_text(encoding="utf-8")
    assert written == results_page.page(Path("docs/results"), Path("docs/results.md"))


def test_every_experiment_has_a_committed_run():
    runs = (ROOT / "docs/results").glob("**/results.json")
    named = {json.loads(path.read_text(encoding="utf-8"))["experiment"] for path in runs}
    assert named == set(registry.HOMES)
