import csv

from click.testing import CliRunner

from attentropy.cli import main
from attentropy.report.curves import FIGURES


def call(*arguments):
    return CliRunner().invoke(main, ["curves", *arguments])


def test_writes_three_files(tmp_path):
    done = call("--out", str(tmp_path), "--only", "worst_deficit")
    assert done.exit_code == 0, done.output
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["worst_deficit.csv", "worst_deficit.png", "worst_deficit.svg"]
    assert done.output.splitlines() == [
        str(tmp_path / f"worst_deficit.{x}") for x in ("png", "svg", "csv")
    ]
    with (tmp_path / "worst_deficit.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["tau", "deficit", "R^2/8", "R-1-log R"]
    assert len(rows) == 242


def test_lists_and_complains():
    assert all(name in call("--list").output for name in FIGURES)
    done = call("--only", "unicorn")
    assert done.exit_code == 2
    assert "no figure unicorn" in done.output
