"""What an outsider gets wrong is one sentence that names argument, rule and value."""

import os

import numpy as np
import pytest
from click.testing import CliRunner

from attentropy.cli import main
from attentropy.training.runstore import RunStore
from tests.training.runstore.test_writer import sample


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.setenv("ATTENTROPY_RUNS", str(tmp_path / "runs"))
    monkeypatch.chdir(tmp_path)
    store = RunStore("mine")
    store(sample(1.0, loss=3.5), 0)
    store.close()
    (tmp_path / "folder").mkdir()
    (tmp_path / "a.txt").write_text("a text")
    (tmp_path / "other.json").write_text('{"a": 1}')
    np.save(tmp_path / "big.npy", np.full(100, 1000))


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        ("report folder", 2, "there is no run 'folder': it is a folder, not a file, and none in"),
        ("export absent --json", 2, "there is no run 'absent': no such file, and none in"),
        ("report mine --out folder", 2, "cannot write --out folder: it is a folder, not a file"),
        ("report mine --out no/x.html", 2, "cannot write --out no/x.html: there is no folder no"),
        ("report mine --out a.txt/x.html --json", 2, "there is no folder a.txt"),
        ("export mine --out folder", 2, "cannot write --out folder: it is a folder, not a file"),
        ("export mine --out no/x.csv", 2, "cannot write --out no/x.csv: there is no folder no"),
        ("curves --out a.txt", 2, "Invalid value for '--out': Directory 'a.txt' is a file."),
        ("theory S_relu2 beta=1 beta=2 gamma=1", 2, "S_relu2: beta must be given once, got 2"),
        ("scan --text nosuch", 2, "--text nosuch does not exist"),
        ("serve nosuchdir", 2, "DIR must be a folder, got nosuchdir"),
        ("scan --tokens folder", 2, "--tokens folder is a folder, not a file"),
        ("scan --tokens big.npy", 2, "token ids must be 0 or more below 256, got 1000"),
        ("scan --device meta", 2, "--device meta cannot be used: it holds no numbers"),
        ("scan --compare folder", 2, "--compare folder/scan.json does not exist"),
        (
            "scan --compare other.json --json",
            2,
            "--compare other.json is not a file of attentropy.scan",
        ),
    ],
)
def test_a_mistake_is_told_in_a_sentence_and_writes_nothing(command, code, message, tmp_path):
    before = sorted(os.listdir(tmp_path))
    result = CliRunner().invoke(main, command.split())
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == code, result.output
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("Error: ")
    assert message in last
    assert result.stdout == ""
    assert sorted(os.listdir(tmp_path)) == before


def test_a_disk_that_fails_is_named_with_the_file(monkeypatch):
    from attentropy.scans import store

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store.os, "fsync", full)
    result = CliRunner().invoke(main, ["report", "mine", "--out", "x.html"])
    assert result.exit_code == 1
    assert result.stderr == "Error: cannot write x.html: No space left on device\n"
