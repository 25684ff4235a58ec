import json
import re
from pathlib import Path

import pytest

from attentropy.lab.harness import registry, results_page
from attentropy.lab.harness.run_plan import RunPlan
from attentropy.lab.harness.runner import run
from attentropy.lab.harness.summary import bullets, ran, tables
from tests.lab.harness.toy import TOY

ROOT = Path(__file__).parents[3]


def test_the_full_run_is_preferred_and_figures_are_linked(tmp_path, monkeypatch):
    monkeypatch.setattr(results_page, "HOMES", {"toy": ""})
    monkeypatch.setattr(results_page, "find", lambda name: TOY)
    run(RunPlan(TOY, seeds=1), tmp_path / "runs/a")
    run(RunPlan(TOY, seeds=1, quick=True), tmp_path / "runs/b")
    (tmp_path / "runs/a/remarks.txt").write_text("Its alarms are of another day.\n")
    text = results_page.page(tmp_path / "runs", tmp_path / "docs/results.md")
    assert "\n\nIts alarms are of another day.\n\n<details" in text
    assert text.endswith("\n\n</details>\n")
    assert "## toy\n" in text
    assert "(quick run)" not in text
    assert "![H](../runs/a/h.png)" in text


def test_a_run_on_a_given_model_has_a_section_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(results_page, "HOMES", {"toy": ""})
    monkeypatch.setattr(results_page, "find", lambda name: TOY)
    for name, model in (("a", None), ("b", "weights/small.gguf on ids.npy")):
        run(RunPlan(TOY, seeds=1), tmp_path / name)
        file = tmp_path / name / "results.json"
        about = json.loads(file.read_text())
        if model is not None:
            about["config"]["model"] = model
        file.write_text(json.dumps(about))
    text = results_page.page(tmp_path, tmp_path / "results.md")
    assert "## toy\n" in text
    assert "## toy, small.gguf\n" in text
    assert "| [toy, small.gguf](#toy-smallgguf) |" in text


def test_the_page_begins_with_a_table_of_answers(tmp_path, monkeypatch):
    monkeypatch.setattr(results_page, "HOMES", {"toy": ""})
    monkeypatch.setattr(results_page, "find", lambda name: TOY)
    run(RunPlan(TOY, seeds=1), tmp_path / "runs/a")
    first = next(iter(TOY.conclude(results_page.published(tmp_path / "runs")[0].results)))
    plain = results_page.page(tmp_path / "runs", tmp_path / "results.md")
    assert f"| [toy](#toy) | {TOY.question} | {first} |" in plain
    (tmp_path / "runs/a/answer.txt").write_text("Yes:\nby 3 | 4.\n")
    text = results_page.page(tmp_path / "runs", tmp_path / "results.md")
    assert f"| [toy](#toy) | {TOY.question} | Yes: by 3 \\| 4. | `attentropy lab toy" in text
    assert "## toy\n\n**Yes: by 3 | 4.**\n" in text


def test_every_number_of_an_answer_stands_in_its_run():
    for shown in results_page.published(ROOT / "docs/results"):
        if not (shown.folder / results_page.ANSWER).exists():
            continue
        told = bullets(shown.experiment, shown.results) + ran(shown.about)
        told += "".join(tables(shown.experiment, shown.results)) + shown.experiment.question
        known = set(re.findall(r"\d+(?:\.\d+)?", told.replace(",", "")))
        found = re.findall(r"\d+(?:\.\d+)?", shown.answer.replace(",", ""))
        assert [number for number in found if number not in known] == [], shown.about["experiment"]


def test_the_committed_page_is_what_the_committed_runs_give(monkeypatch):
    monkeypatch.chdir(ROOT)
    written = Path("docs/results.md").read_text(encoding="utf-8")
    assert written == results_page.page(Path("docs/results"), Path("docs/results.md"))


@pytest.mark.slow  # so that a run can land before its Chinese answer does
def test_the_chinese_page_is_what_the_committed_runs_give(monkeypatch):
    monkeypatch.chdir(ROOT)
    written = Path("docs/zh/results.md").read_text(encoding="utf-8")
    assert written == results_page.chinese_page(Path("docs/results"), Path("docs/zh/results.md"))


@pytest.mark.slow
def test_chinese_answers_have_the_numbers_of_the_english_ones():
    for shown in results_page.published(ROOT / "docs/results"):
        both = (shown.answer, shown.chinese_answer)
        numbers = [set(re.findall(r"\d+(?:\.\d+)?", text.replace(",", ""))) for text in both]
        assert numbers[0] == numbers[1], both


def test_the_chinese_page_has_the_answers_in_chinese(tmp_path, monkeypatch):
    monkeypatch.setattr(results_page, "HOMES", {"toy": ""})
    monkeypatch.setattr(results_page, "find", lambda name: TOY)
    run(RunPlan(TOY, seeds=1), tmp_path / "runs/a")
    (tmp_path / "runs/a/answer.txt").write_text("By 3.\n")
    before = results_page.chinese_page(tmp_path / "runs", tmp_path / "zh/results.md")
    assert "## toy\n\n**By 3.**\n" in before
    (tmp_path / "runs/a/answer.zh.txt").write_text("差 3。\n", encoding="utf-8")
    text = results_page.chinese_page(tmp_path / "runs", tmp_path / "zh/results.md")
    assert "| 差 3。 | `attentropy lab toy" in text
    assert "## toy\n\n**差 3。**\n\n问题：" in text
    assert "![H](../runs/a/h.png)" in text
    assert "[英文页](../results.md#toy)" in text


def test_every_experiment_has_a_committed_run():
    runs = (ROOT / "docs/results").glob("**/results.json")
    named = {json.loads(path.read_text(encoding="utf-8"))["experiment"] for path in runs}
    assert named == set(registry.HOMES)
