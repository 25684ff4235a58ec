import os
from pathlib import Path

import pytest

from attentropy.training.runstore import NoSuchRun, RunError, RunStore, find, is_run, read, runs


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.setenv("ATTENTROPY_RUNS", str(tmp_path))


def test_names_are_taken_as_they_are(tmp_path):
    stores = [RunStore(tmp_path / name) for name in ("lr0.001", "lr0.01")]
    assert [store.path.name for store in stores] == ["lr0.001.db", "lr0.01.db"]
    assert RunStore("lr1.5").path == tmp_path / "lr1.5.db"
    assert find("lr1.5") == tmp_path / "lr1.5.db"


def test_two_runs_without_a_name_are_two_files():
    assert RunStore().path != RunStore().path


def test_what_is_no_file_hides_nothing(tmp_path):
    RunStore("good").close()
    (tmp_path / "dangling.db").symlink_to(tmp_path / "absent")
    os.mkfifo(tmp_path / "pipe.db")
    (tmp_path / "folder.db").mkdir()
    assert [path.name for path in runs()] == ["good.db"]
    assert not is_run(tmp_path / "pipe.db")
    for name in ("dangling", "pipe"):
        with pytest.raises(NoSuchRun):
            read(name)
    with pytest.raises(RunError, match="not a file that a run can be written to"):
        RunStore(tmp_path / "pipe.db")


def test_an_empty_or_half_made_file_is_a_new_run(tmp_path):
    (tmp_path / "empty.db").touch()
    RunStore("empty").close()
    assert read("empty").steps == []


def test_a_path_that_sqlite_does_not_take_is_one_sentence(tmp_path):
    deep = Path(tmp_path, *("x" * 200 for _ in range(4)), "run.db")
    with pytest.raises(RunError, match=r"run\.db cannot be opened"):
        RunStore(deep)
