import json

import pytest
from click.testing import CliRunner

from attentropy.cli import main
from attentropy.scans.store import save
from tests.report.synthetic import make_scan
from tests.report.synthetic_run import make_run, write_run


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


def test_runs_are_compared_by_file_folder_or_name(call, tmp_path, monkeypatch):
    monkeypatch.setenv("ATTENTROPY_RUNS", str(tmp_path / "runs"))
    (tmp_path / "runs").mkdir()
    (tmp_path / "alone").mkdir()
    one, two = make_run(samples=6), make_run(samples=9)
    write_run(tmp_path / "runs" / "one.db", one)
    write_run(tmp_path / "alone" / "two.db", two)
    result = call("one", "alone", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["scans"], found["length"]) == (["one", "two"], None)
    first = found["changes"][0]
    entropy = [run.metrics["entropy"][-1][first["layer"]][first["head"]] for run in (one, two)]
    assert [first["before"], first["after"]] == pytest.approx(entropy, rel=1e-5)
    assert call(str(tmp_path / "runs" / "one.db"), "two", "before").exit_code == 2
    mixed = call("before", "one", "--json")
    assert mixed.exit_code == 0, mixed.output
    assert json.loads(mixed.stdout)["changes"] == []  # other layers
    write_run(tmp_path / "alone" / "three.db", two)
    several = call("alone", "one")
    assert several.exit_code == 2
    assert "alone holds 2 runs: name one, such as" in several.stderr
