"""A newcomer reads what `attentropy scan` runs through: few files, each named in the docs."""

import pytest
from click.testing import CliRunner

from attentropy.cli import main
from tests.models.test_models_walk import attended, files, told

TEXT = "In the beginning was a short text, and the text was short. " * 40


@pytest.fixture
def scan(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text(TEXT)
    command = [
        "scan",
        "scans.tiny:make",
        "--text",
        "text.txt",
        "--lengths",
        "16,32",
        "--out",
        "out",
    ]

    def run():
        result = CliRunner().invoke(main, command)
        assert result.exit_code == 0, result.output

    return run


def test_from_the_command_to_the_report(scan):
    scan()  # everything is imported
    with files() as found:
        scan()
    own = found - attended() - told("The walk of a call") - told()
    own = {name for name in own if not name.startswith("kernels/")}  # behind attend()
    assert len(own) <= 54, sorted(own)
    here = {name for name in own if name.startswith(("scans/", "models/"))}
    assert here <= told("A scan"), sorted(here - told("A scan"))
