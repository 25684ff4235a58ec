"""Scans and runs below a folder are found by name, and nothing else is."""

import pytest

from attentropy.report import shelf
from attentropy.scans.store import save
from tests.report.synthetic import make_scan
from tests.report.synthetic_run import make_run, write_run


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "a" / "deep").mkdir(parents=True)
    save(tmp_path / "a", make_scan(layers=1, heads=2, name="mine"))
    write_run(tmp_path / "pilot.db", make_run(layers=1, heads=2, samples=3))
    (tmp_path / "a" / "deep" / "notes.db").write_text("no run")
    (tmp_path / "link.scan.json").symlink_to(tmp_path / "a" / "scan.json")
    return tmp_path


def test_entries_are_scans_and_runs_and_no_links(folder):
    found = {(one.kind, one.id) for one in shelf.entries(folder)}
    assert found == {("scan", "a/scan.json"), ("run", "pilot.db")}
    assert shelf.find(folder, "scan", "a/scan.json").path == folder / "a" / "scan.json"
    assert shelf.find(folder, "run", "a/scan.json") is None
    assert shelf.find(folder, "scan", "../secret/scan.json") is None


def test_folders_that_are_too_deep_are_not_searched(folder):
    deep = folder.joinpath(*"bcdef")
    deep.mkdir(parents=True)
    save(deep, make_scan(layers=1, heads=1))
    assert len(shelf.entries(folder)) == 2


def test_descriptions_name_what_is_inside_or_why_it_cannot_be_read(folder):
    scan, run = (shelf.find(folder, *key) for key in (("scan", "a/scan.json"), ("run", "pilot.db")))
    assert shelf.describe(scan)["name"] == "mine"
    assert shelf.describe(scan)["facts"][0] == "2 heads"
    assert shelf.describe(run)["facts"] == ["2 heads", "step 100", "0 alarms"]
    scan.path.write_text("{}")
    said = shelf.describe(scan)["headline"]
    assert said.startswith("Cannot be read: a/scan.json is not a file of attentropy.scan")


def test_a_stamp_changes_with_the_file(folder):
    scan = shelf.find(folder, "scan", "a/scan.json")
    before = scan.stamp
    save(folder / "a", make_scan(layers=1, heads=3, name="mine"))
    assert scan.stamp != before
