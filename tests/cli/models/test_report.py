import json

import pytest
from click.testing import CliRunner

from attentropy.cli import main
from attentropy.scans.store import save
from tests.report.synthetic import make_scan


@pytest.fixture
def scan_file(tmp_path):
    return save(tmp_path, make_scan(layers=2, heads=2, name="kept model"))


def test_a_scan_becomes_a_page_again(scan_file, tmp_path):
    result = CliRunner().invoke(main, ["report", str(scan_file)])
    assert result.exit_code == 0, result.output
    assert "kept model" in (tmp_path / "scan.html").read_text(encoding="utf-8")
    result = CliRunner().invoke(main, ["report", str(scan_file), "--out", str(tmp_path / "x.html")])
    assert (tmp_path / "x.html").exists()
    assert f"Report: {tmp_path / 'x.html'}" in result.stdout
    result = CliRunner().invoke(main, ["report", str(scan_file), "--json"])
    assert json.loads(result.stdout) == {"report": str(tmp_path / "scan.html")}


def test_what_is_neither_run_nor_scan_is_refused(tmp_path):
    other = tmp_path / "other.json"
    other.write_text("text")
    for path, message, code in (
        (other, "is not JSON", 1),
        (tmp_path / "absent.json", "does not exist", 2),
        (tmp_path / "absent", "there is no run", 2),
    ):
        result = CliRunner().invoke(main, ["report", str(path)])
        assert result.exit_code == code
        assert message in result.stderr
        assert "Traceback" not in result.stderr
    assert not (tmp_path / "other.html").exists()
