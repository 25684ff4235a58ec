import json
import math
from dataclasses import replace

import pytest

from attentropy.lab.harness.run_folder import RunFolder, RunFolderError
from attentropy.lab.harness.run_plan import RunPlan, Unit
from attentropy.lab.harness.runner import run
from tests.lab.harness.toy import TOY, Config


def test_directories_do_not_mix(tmp_path):
    out = tmp_path / "toy"
    run(RunPlan(TOY, seeds=1), out)
    with pytest.raises(RunFolderError, match="holds this run already: add --resume"):
        run(RunPlan(TOY, seeds=1), out)
    with pytest.raises(RunFolderError, match=r"another configuration \(seeds 1, not 2\)"):
        run(RunPlan(TOY, seeds=2), out, resume=True)
    other = replace(TOY, full=Config(lengths=(3,)))
    with pytest.raises(RunFolderError, match=r"\(lengths \[2, 4\], not \[3\]\)"):
        run(RunPlan(other, seeds=1), out, resume=True)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.tex").write_text("")
    with pytest.raises(RunFolderError, match="is not empty and holds no run of the lab"):
        run(RunPlan(TOY, seeds=1), tmp_path / "mine")


@pytest.fixture
def folder(tmp_path):
    made = RunFolder(tmp_path / "run", RunPlan(TOY, seeds=2))
    made.open(resume=False)
    return made


def test_units_are_kept_and_come_back_in_the_order_of_the_plan(folder):
    first, *_, last = folder.plan.units()
    folder.save(last, [{"h": 2.0}])
    folder.save(first, [{"h": 1.0}, {"h": 1.5}])
    assert [folder.has(unit) for unit in folder.plan.units()] == [True, False, False, True]
    assert folder.rows() == [
        {"condition": "a/b", "seed": 0, "h": 1.0},
        {"condition": "a/b", "seed": 0, "h": 1.5},
        {"condition": "c d", "seed": 1, "h": 2.0},
    ]
    assert folder.about({})["units"] == [2, 4]


def test_numbers_are_rounded_and_what_is_not_finite_is_null(folder):
    folder.save(Unit("a/b", 0), [{"h": 1 / 3, "x": math.nan, "y": [math.inf], "z": 7}])
    (row,) = folder.rows()
    assert row == {"condition": "a/b", "seed": 0, "h": 0.33333333, "x": None, "y": [None], "z": 7}


def test_the_csv_has_every_column_once(folder):
    folder.save(Unit("a/b", 0), [{"h": 1.0}, {"k": "with, comma"}])
    folder.finish({"cpu": "any"})
    lines = (folder.path / "results.csv").read_text().splitlines()
    assert lines == ["condition,seed,h,k", "a/b,0,1.0,", 'a/b,0,,"with, comma"']
    stored = json.loads((folder.path / "results.json").read_text())
    assert stored["machine"] == {"cpu": "any"}
    assert stored["rows"] == folder.rows()


def test_a_file_is_whole_or_not_there(folder, monkeypatch):
    def fails(_):
        raise OSError("disk full")

    monkeypatch.setattr("attentropy.lab.harness.run_folder.os.fsync", fails)
    with pytest.raises(OSError, match="disk full"):
        folder.save(Unit("a/b", 0), [{"h": 1.0}])
    assert not folder.has(Unit("a/b", 0))
    assert folder.rows() == []
