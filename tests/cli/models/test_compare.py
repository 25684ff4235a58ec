import json

import pytest
from click.testing import CliRunner

from attentropy.cli import main
from attentropy.scans.store import save
from tests.report.synthetic import make_scan


@pytest.fixture
def call(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, sharpen in (("before", 1.0), ("after", 1.5)):
        (tmp_path / name).mkdir()
        save(tmp_path / name, make_scan(layers=2, heads=3, sharpen=sharpen))

    def run(*arguments):
        return CliRunner().invoke(main, ["compare", *arguments, "--out", "out"])

    return run


def test_folders_and_files_become_a_page(call, tmp_path):
    result = call("before", "after/scan.json", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["scans"] == ["before", "after"]
    assert found["length"] == 512
    assert len(found["changes"]) == 6
    assert found["changes"][0]["change"] == pytest.approx(
        found["changes"][0]["after"] - found["changes"][0]["before"]
    )
    assert (tmp_path / "out" / "compare.html").exists()
    result = call("before", "after", "before")
    assert result.exit_code == 0, result.output
    assert "Compare: out" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("before",), "compare needs two scans or more, got 1"),
        ((), "Missing argument"),
        (("before", "absent"), "absent does not exist"),
    ],
)
def test_mistakes_are_one_sentence(call, tmp_path, arguments, message):
    result = call(*arguments)
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert not (tmp_path / "out").exists()
