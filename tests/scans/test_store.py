"""Files are whole or absent."""

import os
import stat

import pytest

from attentropy.scans import store
from attentropy.scans.errors import ScanError
from tests.report.synthetic import make_scan


def test_saved_is_loaded_from_the_file_or_its_folder(tmp_path):
    scan = make_scan(layers=1, heads=2)
    path = store.save(tmp_path, scan)
    assert store.load(path) == store.load(tmp_path) == scan
    assert os.listdir(tmp_path) == ["scan.json"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~store._umask()


@pytest.mark.parametrize("step", ["fsync", "replace", "chmod"])
def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, step):
    path = tmp_path / "scan.json"
    path.write_bytes(b"old")

    def fail(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store.os, step, fail)
    with pytest.raises(OSError, match="No space left"):
        store.write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["scan.json"]


def test_ctrl_c_while_writing_leaves_nothing(tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(store.os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        store.write_atomically(tmp_path / "a", b"new")
    assert os.listdir(tmp_path) == []


def test_an_output_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "out").write_text("")
    for path in (tmp_path / "out", tmp_path / "out" / "deeper"):
        with pytest.raises(ScanError, match=r"out .*out.* is not a folder"), store.prepared(path):
            pytest.fail("entered")


def test_an_output_that_cannot_be_written_is_refused(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(store.tempfile, "TemporaryFile", fail)
    why = "cannot be written: Permission denied"
    for path in (tmp_path, tmp_path / "new"):
        with pytest.raises(ScanError, match=why), store.prepared(path):
            pytest.fail("entered")
    assert list(tmp_path.iterdir()) == []


def test_a_scan_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ScanError, match=r"scan\.json does not exist"):
        store.load(tmp_path)
