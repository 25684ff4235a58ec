"""Commands in Chinese: help, what a scan prints, and what stays as it is."""

import inspect
import json
import re
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from attentropy.cli import COMMANDS, GROUPS, main
from attentropy.cli.language import cells, language_of, wrapped
from attentropy.core.language.speaking import VARIABLES, speaking, spoken
from tests.core.language.reading import NEARLY, english

NAMES = ("main", "auto", "causal", "disk", "per", "head", "gamma", "scores", "noise", "scales")
CHINESE = {"LANGUAGE": None, "LC_ALL": None, "LC_MESSAGES": None, "LANG": "zh_CN.UTF-8"}


def call(*args, env=None):
    return CliRunner().invoke(main, list(args), env=env)


def words(text):
    """English of a help page, without examples, options and metavars."""
    kept = text.partition("示例：")[0].replace("INTEGER RANGE", "").replace("FLOAT RANGE", "")
    return english(kept, names={*COMMANDS, *NAMES})


@pytest.mark.parametrize("name", COMMANDS)
def test_help_is_chinese(name):
    result = call(name, "--help", "--lang", "zh")
    assert result.exit_code == 0
    assert "用法：" in result.output
    # a new option may land before its translation does: the slow test names it
    assert len(words(result.output)) < 0.2 * len(re.findall(r"[\u4e00-\u9fff]", result.output))


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_help_is_chinese_to_the_last_word(name):
    assert words(call(name, "--help", "--lang", "zh").output) == []


@pytest.mark.parametrize("name", COMMANDS)
def test_help_fits_the_terminal(name):
    options = call(name, "--help", "--lang", "zh").output.partition("示例：")[0]
    assert max(map(cells, options.splitlines())) <= 80


def test_the_first_page_is_chinese_and_has_every_command():
    result = call("--help", "--lang=zh")
    assert words(result.output) == []
    assert all(f"  {name}" in result.output for name in COMMANDS)


@pytest.mark.parametrize("allowed", NEARLY)
def test_every_help_has_a_phrase(allowed):
    """Walks the commands themselves: no text may reach the page by another way."""
    from attentropy.core.language.phrases import phrases

    texts = [*COMMANDS.values(), *(group.heading for group in GROUPS)]
    for command in [main, *(main.get_command(None, name) for name in COMMANDS)]:
        texts += inspect.cleandoc(command.help).split("\n\n")
        texts += [p.help for p in command.params if getattr(p, "help", None)]
    known = phrases("zh").known
    lacking = [t for t in texts if known(" ".join(t.split())) is None]
    assert len(lacking) <= allowed * len(texts), lacking


@pytest.mark.parametrize(
    ("args", "env", "chinese"),
    [
        ((), {}, False),
        ((), CHINESE, True),
        (("--lang", "en"), CHINESE, False),
        (("--lang", "zh"), {}, True),
        (("--lang=zh",), {}, True),
        ((), CHINESE | {"LC_ALL": "C"}, False),
        ((), {"LANG": "en_US.UTF-8"}, False),
    ],
)
def test_the_option_comes_before_the_environment(args, env, chinese):
    for words in ((*args, "scan", "--help"), ("scan", *args, "--help"), ("scan", "--help", *args)):
        assert ("用法：" in call(*words, env=dict.fromkeys(VARIABLES) | env).output) == chinese


def test_what_follows_two_dashes_is_no_option():
    assert language_of(["text", "--", "--lang", "zh"]) == language_of([])


def test_other_languages_are_refused():
    result = call("runs", "--lang", "fr")
    assert (result.exit_code, "'fr' is not one of 'en', 'zh'" in result.output) == (2, True)


def test_a_call_leaves_no_language_behind():
    call("runs", "--lang", "zh")
    assert spoken() == "en"


@pytest.fixture(scope="module")
def scanned(tmp_path_factory):
    out = tmp_path_factory.mktemp("zh") / "scan"
    args = ["scan", "--lang", "zh", "--lengths", "32,64", "--tokens-per-length", "256"]
    return call(*args, "--out", str(out)), out


def test_a_scan_speaks_chinese(scanned):
    result, out = scanned
    assert result.exit_code == 0, result.output
    lines = [line for line in result.stdout.splitlines() if str(out.parent) not in line]
    code = ("    import", "    from", "    model", "    at.", "attentropy-embedded")
    assert [english(line) for line in lines if not line.startswith(code)] == [[]] * len(
        [line for line in lines if not line.startswith(code)]
    )
    assert "困惑度" in result.stdout


def test_its_files_are_english(scanned):
    _, out = scanned
    text = (out / "scan.json").read_text(encoding="utf-8")
    assert not any("\u4e00" <= sign <= "\u9fff" for sign in text)
    assert '<html lang="zh-CN">' in (out / "report.html").read_text(encoding="utf-8")


def test_the_summary_for_programs_is_english(scanned):
    from attentropy.cli.models.scan_summary import machine
    from attentropy.scans.store import load

    _, out = scanned
    with speaking("zh"):
        text = json.dumps(machine(load(out), out), ensure_ascii=False)
    assert not any("\u4e00" <= sign <= "\u9fff" for sign in text)


@pytest.mark.parametrize("args", [("theory",), ("lab", "list"), ("curves", "--list"), ("runs",)])
def test_json_is_the_same_in_both_languages(args):
    assert call(*args, "--json", "--lang", "zh").output == call(*args, "--json").output


def test_doctor_speaks_chinese():
    result = call("doctor", "--lang", "zh")
    kept = [
        line for line in result.output.splitlines() if "原因：" not in line and "编译器" not in line
    ]
    assert english("\n".join(kept)) == []
    assert call("doctor", "--json", "--lang", "zh").output == call("doctor", "--json").output


@pytest.mark.parametrize("allowed", NEARLY)
@pytest.mark.parametrize("args", [("lab", "list"), ("curves", "--list")])
def test_lists_are_chinese(args, allowed):
    lines = call(*args, "--lang", "zh").output.splitlines()
    lacking = [line for line in lines if english(line[27:])]
    assert len(lacking) <= 2 * allowed * len(lines), lacking


def test_lines_break_where_chinese_breaks():
    lines = wrapped("注意力的熵，随长度增长。它不算毛病，只是描述（见 docs）。", 12)
    assert (
        "".join(lines).replace(" ", "")
        == "注意力的熵，随长度增长。它不算毛病，只是描述（见docs）。"
    )
    assert not any(line[0] in "，。；：、）" for line in lines)
    assert all(cells(line) <= 14 for line in lines)  # a mark may stand beyond the edge


def test_help_needs_no_phrases_in_english():
    """The catalogue is read for Chinese alone, and torch for neither."""
    code = (
        "import sys; from attentropy.cli import main\n"
        "try: main(['scan', '--help'])\n"
        "except SystemExit: pass\n"
        "assert 'attentropy.core.language.phrases' not in sys.modules and 'torch' not in sys.modules"
    )
    env = {"LANG": "C.UTF-8", "PATH": "", "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


def test_commands_get_the_option_once():
    command = main.get_command(click.Context(main), "runs")
    assert sum(option.name == "lang" for option in command.params) == 1
