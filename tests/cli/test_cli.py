"""The command line as a whole: one screen of help, examples everywhere, a quick start."""

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from attentropy.cli import COMMANDS, GROUPS, main

PRINTS_NO_RESULTS = {"serve"}  # it shows pages
STARTS = """
import sys
{before}
from attentropy.cli import main
main(["--help"], standalone_mode=False)
print(*sorted({{"torch", "scipy", "numpy", "rich", "transformers"}} & set(sys.modules)))
"""


def call(*arguments):
    return CliRunner().invoke(main, arguments)


def loaded(before=""):
    code = STARTS.format(before=before)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1]


def test_help_fits_one_screen():
    lines = call("--help").output.splitlines()
    assert len(lines) <= 36
    assert max(map(len, lines)) <= 80


def test_every_command_is_under_one_heading():
    listed = [name for group in GROUPS for name in group.names]
    assert sorted(listed) == sorted(COMMANDS)
    assert all(group.heading in call("--help").output for group in GROUPS)


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - PRINTS_NO_RESULTS))
def test_results_come_as_json_too(name):
    assert "--json" in call(name, "--help").output
    assert call(name, "-h").output == call(name, "--help").output


@pytest.mark.parametrize("arguments", [("lab", "list"), ("curves", "--list"), ("theory",)])
def test_lists_are_json(arguments):
    assert json.loads(call(*arguments, "--json").stdout)


def test_unknown_command_is_a_usage_error():
    done = call("unicorn")
    assert done.exit_code == 2
    assert "No such command 'unicorn'" in done.output


def test_a_misspelt_command_is_recognised():
    done = call("sacn")
    assert done.exit_code == 2
    assert "No such command 'sacn'. Did you mean 'scan'?" in done.output


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("bench", "--only", "unicorn"), 2, "no contender unicorn; there are"),
        (("bench", "--repeat", "0"), 2, "0 is not in the range x>=1"),
        (("watch", "run", "--every", "0"), 2, "is not in the range"),
        (("claims", "--source", "9"), 2, "sources are 000, 001, 002, 003, 004"),
        (("curves", "--only", "entropy_length", "--out", "taken"), 2, "'taken' is a file"),
        (("lab", "sparsity", "--quick", "--out", "taken/below"), 1, "Not a directory: taken/below"),
        (("report", "taken", "--out", "nowhere/x.html"), 1, "taken is not a run of attentropy"),
        (("runs", "--dir", "taken"), 2, "Directory 'taken' is a file"),
        (("serve", "--host", "192.0.2.1"), 1, "cannot listen on 192.0.2.1:8765: Cannot assign"),
    ],
)
def test_a_mistake_is_one_sentence(arguments, code, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").write_text("a file")
    done = call(*arguments)
    assert done.exit_code == code, done.output
    assert message in done.stderr.splitlines()[-1]
    assert isinstance(done.exception, SystemExit)


def test_the_module_is_the_command():
    run = [sys.executable, "-m", "attentropy", "--help"]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    assert done.stdout == CliRunner().invoke(main, ["--help"], prog_name="attentropy").stdout


def test_help_imports_nothing_heavy():
    assert loaded() == ""


def test_the_proof_would_notice():
    assert "numpy" in loaded("import numpy")
