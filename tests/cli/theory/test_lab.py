import json
import subprocess
import sys
import time

import pytest
from click.testing import CliRunner

from attentropy.cli import main
from attentropy.lab.harness.registry import HOMES

CHEAP = ("scales", "noise", "sparsity", "positions")


def call(*arguments):
    return CliRunner().invoke(main, ["lab", *arguments])


def test_list():
    done = call("list")
    assert done.exit_code == 0
    assert [line.split()[0] for line in done.output.splitlines()] == list(HOMES)


@pytest.mark.parametrize("name", CHEAP)
def test_quick_runs_of_the_cheapest(tmp_path, name):
    out = tmp_path / "out"
    done = call(name, "--quick", "--seeds", "1", "--out", str(out))
    assert done.exit_code == 0, done.output
    assert f"{name} (quick run)" in done.output
    results = json.loads((out / "results.json").read_text())
    assert results["quick"] is True
    assert results["rows"]
    assert list(out.glob("*.png"))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in HOMES if name not in CHEAP])
def test_quick_runs_of_the_others(tmp_path, name):
    done = call(name, "--quick", "--seeds", "1", "--out", str(tmp_path / "out"))
    assert done.exit_code == 0, done.output


def test_resume_of_a_finished_run_gives_the_same(tmp_path):
    arguments = ("sparsity", "--quick", "--seeds", "1", "--out", str(tmp_path / "out"))
    call(*arguments)
    before = (tmp_path / "out/results.csv").read_bytes()
    refused = call(*arguments)
    assert refused.exit_code == 1
    assert "add --resume to complete it" in refused.output
    assert call(*arguments, "--resume").exit_code == 0
    assert (tmp_path / "out/results.csv").read_bytes() == before


def test_complaints(tmp_path):
    done = call("sparsty", "--out", str(tmp_path / "out"))
    assert done.exit_code == 2
    assert "did you mean 'sparsity'?" in done.output
    done = call("sparsity", "--seeds", "0", "--out", str(tmp_path / "out"))
    assert done.exit_code == 2
    assert "seeds must be >= 1, got 0" in done.output
    done = call("sparsity", "--seeds", "3,x", "--out", str(tmp_path / "out"))
    assert done.exit_code == 2
    assert "a number, or numbers with commas; got '3,x'" in done.output
    assert not (tmp_path / "out").exists()


def test_figures_are_asked_for_before_the_work(tmp_path, monkeypatch):
    monkeypatch.setattr("attentropy.cli.failures.find_spec", lambda name: None)
    done = call("sparsity", "--quick", "--out", str(tmp_path / "out"))
    assert done.exit_code == 1
    assert "attentropy lab needs matplotlib: pip install 'attentropy[lab]'" in done.output
    assert not (tmp_path / "out").exists()


def test_a_given_model(tmp_path):
    arguments = ("noise", "--quick", "--seeds", "1", "--model", "scans.tiny:make")
    done = call(*arguments, "--out", str(tmp_path / "out"), "--json")
    assert done.exit_code == 0, done.output
    about = json.loads(done.stdout)
    assert about["config"]["model"] == "scans.tiny:make"
    assert about["command"] == "attentropy lab noise --quick --seeds 1 --model scans.tiny:make"
    assert any(row["condition"] == "real heads" for row in about["rows"])


def test_complaints_about_models(tmp_path):
    out = ("--out", str(tmp_path / "out"))
    done = call("noise", "--model", "nowhere/at-all", *out)
    assert done.exit_code == 2
    assert "MODEL nowhere/at-all does not exist" in done.output
    done = call("sparsity", "--model", "scans.tiny:make", *out)
    assert done.exit_code == 2
    assert "--model must be left out: only noise, scales and extend take one" in done.output
    done = call("noise", "--tokens", "nowhere.npy", *out)
    assert done.exit_code == 2
    assert "--tokens nowhere.npy does not exist" in done.output


def test_a_killed_process_leaves_what_resume_completes_to_the_same_numbers(tmp_path):
    words = ["positions", "--quick", "--seeds", "2"]
    code = "from attentropy.cli import main; main()"
    command = [sys.executable, "-c", code, "lab", *words, "--out", str(tmp_path / "killed")]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None and not list(tmp_path.glob("killed/units/*.json")):
            time.sleep(0.01)
        process.kill()
    assert not (tmp_path / "killed/results.json").exists()
    assert call(*words, "--out", str(tmp_path / "whole")).exit_code == 0
    assert call(*words, "--out", str(tmp_path / "killed"), "--resume").exit_code == 0
    for name in ("results.csv", "config.json"):
        killed, whole = ((tmp_path / run / name).read_bytes() for run in ("killed", "whole"))
        assert killed == whole


def test_another_configuration_is_refused(tmp_path):
    out = ("--out", str(tmp_path / "out"))
    assert call("positions", "--quick", "--seeds", "1", *out).exit_code == 0
    for words in (["--quick", "--seeds", "2"], ["--seeds", "1"]):
        done = call("positions", *words, "--resume", *out)
        assert done.exit_code == 1
        assert "holds another configuration" in done.output
    done = call("sparsity", "--quick", "--seeds", "1", "--resume", *out)
    assert "experiment 'positions', not 'sparsity'" in done.output


def given_text(tmp_path):
    given = tmp_path / "a.txt"
    given.write_text("words and pieces of words. " * 4000)
    return str(given)


@pytest.mark.slow
def test_a_text_is_taken_by_the_experiment_that_reads_one(tmp_path):
    given, out = given_text(tmp_path), tmp_path / "out"
    done = call("extrapolate/words", "--quick", "--seeds", "1", "--text", given, "--out", str(out))
    assert done.exit_code == 0, done.output
    record = json.loads((out / "results.json").read_text())
    assert record["command"].endswith(f"--text {given}")
    assert record["config"]["text"] == given


def test_a_text_is_refused_by_the_others(tmp_path):
    done = call("noise", "--text", given_text(tmp_path))
    assert done.exit_code != 0
    assert "only extrapolate/words takes one" in done.output
