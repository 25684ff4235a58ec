"""attentropy watch on a run store."""

import json
import math

import pytest

from attentropy.cli.training.watch import spark
from attentropy.core.statistics import TABLE
from attentropy.training.alarms import Alert
from attentropy.training.runstore import RunStore
from tests.training.runstore.test_writer import sample


def test_watch_shows_the_newest_sample_and_its_alarms(call, run):
    shown = call("watch", run)
    assert "mine: ended, step 10, loss 3.25" in shown
    assert "l0" in shown
    assert "step 10: logits reached 60" in shown
    assert call("watch", run, "--once").strip() == shown.strip()


def test_watch_as_json(call, run):
    data = json.loads(call("watch", run, "--json"))
    assert data["step"] == 10
    assert data["statistics"]["entropy"] == [[2.0, 3.0, 4.0]] * 2
    assert data["statistics"]["output_norm"][0] == [None] * 3
    assert data["alerts"][0]["text"] == "logits reached 60"


def test_columns_are_the_logged_means_of_the_table(call, run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")  # with fewer, long words are broken
    shown = call("watch", run, "--once")
    for one in TABLE.values():
        if "mean" in one.logged:
            assert one.label.split()[0].lower() in shown


def test_a_run_that_is_not_there(call):
    assert "there is no run 'x'" in call("watch", "x", code=2)


def test_the_course_is_drawn_from_lowest_to_highest():
    assert spark([0, 1, 2, 3]) == "▁▃▅█"
    assert spark([1.0, 1.0]) == "▁▁"
    assert spark([0.0, math.nan, 1.0]) == "▁ █"


@pytest.mark.parametrize("columns", [40, 60, 80, 120, 300])
def test_the_newest_end_of_a_course_is_shown_at_any_width(call, monkeypatch, columns):
    store = RunStore("rising")
    for step in range(30):
        store(sample(1.0 if step < 29 else 5.0), step)
    store.close()
    monkeypatch.setenv("COLUMNS", str(columns))
    shown = call("watch", "rising", "--once")
    means = [one for one in TABLE.values() if "mean" in one.logged]
    assert "entropy" in shown
    courses = [line for line in shown.splitlines() if "▁█ " in line or "▁█│" in line]
    assert len(courses) >= 2  # one for each layer
    assert all(len(line) <= columns for line in shown.splitlines()[1:])
    assert shown.count("layer") >= 1 + (columns < 80) * (len(means) > 2)


def test_one_collapse_is_one_line(call):
    store = RunStore("falling")
    for step in range(14):
        told = Alert(step, "entropy collapse", "critical", ((0, step),), "H / log n below 0.05")
        store(sample(1.0, alerts=[told]), step)
    store.close()
    shown = call("watch", "falling", "--once")
    assert shown.count("below 0.05") == 1
    assert "steps 0 to 13: H / log n below 0.05; 13 more alerts, 14 heads in all" in " ".join(
        shown.split()
    )
