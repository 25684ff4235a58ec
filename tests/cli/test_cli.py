"""The command line as a whole: one screen of help, examples everywhere, a quick start."""

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from attentropy.cli import COMMANDS, GROUPS, grouped, main
from attentropy.cli.examples import EXAMPLES

PRINTS_NO_RESULTS = {"report", "serve", "export"}  # write files, serve pages, print CSV
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
    listed = [name for _, names in grouped() for name in names]
    assert sorted(listed) == sorted(COMMANDS)
    assert not dict(grouped())["More"], "give new commands a place in GROUPS"
    assert all(heading in call("--help").output for heading in GROUPS if dict(grouped())[heading])


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command_has_examples(name):
    done = call(name, "--help")
    assert done.exit_code == 0
    assert "Examples:" in done.output
    assert all(f"\n    {example}\n" in done.output for example in EXAMPLES[name])


@pytest.mark.parametrize("name", COMMANDS)
def test_options_in_examples_exist(name):
    known = {option for p in main.get_command(None, name).params for option in p.opts}
    used = {word for line in EXAMPLES[name] for word in line.split() if word.startswith("--")}
    assert used <= known


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - PRINTS_NO_RESULTS))
def test_results_come_as_json_too(name):
    assert "--json" in call(name, "--help").output


@pytest.mark.parametrize("arguments", [("lab", "list"), ("curves", "--list"), ("theory",)])
def test_lists_are_json(arguments):
    assert json.loads(call(*arguments, "--json").stdout)


def test_unknown_command_is_a_usage_error():
    done = call("unicorn")
    assert done.exit_code == 2
    assert "No such command 'unicorn'" in done.output


def test_ctrl_c_gives_the_usual_code(monkeypatch):
    def interrupt():
        raise KeyboardInterrupt

    monkeypatch.setattr("attentropy.kernels.doctor.doctor", interrupt)
    done = call("doctor")
    assert done.exit_code == 130
    assert "stopped" in done.output


def test_help_imports_nothing_heavy():
    assert loaded() == ""


def test_the_proof_would_notice():
    assert "numpy" in loaded("import numpy")
