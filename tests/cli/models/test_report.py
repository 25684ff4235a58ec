import json

import pytest
from click.testing import CliRunner

from attentropy.cli import main
from attentropy.scans.store import forget_compared, save, save_compared
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


def test_a_comparison_that_was_there_stays(scan_file, tmp_path):
    save_compared(tmp_path, "before", make_scan(layers=2, heads=2, name="kept model", sharpen=0.7))
    for given in (scan_file, tmp_path):
        target = tmp_path / "again.html"
        result = CliRunner().invoke(main, ["report", str(given), "--out", str(target)])
        assert result.exit_code == 0, result.output
        page = payload(target.read_text(encoding="utf-8"))
        assert (page["scan"]["name"], page["other"]["name"]) == (tmp_path.name, "before")
    forget_compared(tmp_path)
    CliRunner().invoke(main, ["report", str(scan_file), "--out", str(target)])
    assert payload(target.read_text(encoding="utf-8"))["other"] is None
    assert not (tmp_path / "compared").exists()


def payload(page):
    """What the scripts of a page read."""
    return json.loads(page.split('id="payload">')[1].split("</script>")[0])


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
