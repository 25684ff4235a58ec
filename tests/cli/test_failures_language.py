"""Errors in Chinese: those of click, and every message that a command can end with."""

import ast
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

import attentropy
from attentropy.cli import main
from attentropy.cli.failures import option
from attentropy.core.language.phrases import ERRORS, error_phrases, table
from tests.core.language.reading import NEARLY

SOURCE = Path(attentropy.__file__).parent
ROOMS = ("cli", "scans", "extensions", "training/runstore", "lab/harness", "report")
WHOLE = {
    "ScanError", "NoSuchScan", "CalledWrongly", "RunError", "NoSuchRun", "ExtensionError",
    "RunFolderError", "UnsupportedError", "AttentropyError", "DistributedError",
    "click.UsageError", "click.ClickException", "click.BadParameter",
}  # fmt: skip
IN_PARTS = ("{}, and nothing reads", "{{}} {why}")  # one place holds a sentence of its own


def call(*args):
    return CliRunner().invoke(main, ["--lang", "zh", *args])


@pytest.mark.parametrize(("args", "said", "code"), [
    (["scn"], "错误：没有命令 'scn'。是不是想写 'scan'？", 2),
    (["scan", "--nope"], "错误：没有选项 '--nope'。", 2),
    (["report"], "错误：缺少参数 'RUN'。", 2),
    (["extend"], "错误：缺少选项 '--to'。", 2),
    (["scan", "--batch", "x"], "错误：'--batch' 的值无效：'x' 不是整数。", 2),
    (["scan", "--batch", "0"], "错误：'--batch' 的值无效：0 不在范围 x>=1 之内。", 2),
    (["scan", "nowhere"], "错误：MODEL nowhere 不存在", 2),
    (["scan", "--lengths", "a"], "错误：--lengths 应为整数，例如 64,128,256，得到的是 'a'", 2),
    (["theory", "S_relu2", "beta=1", "gamma=-2"], "gamma 必须为不小于 0 的有限数，得到的是 -2.0", 2),
    (["watch", "nowhere"], "错误：没有训练 'nowhere'：没有这个文件", 2),
    (["report", "/dev/null"], "错误：", 2),
])  # fmt: skip
def test_errors_are_chinese(args, said, code):
    result = call(*args)
    assert said in result.output
    assert result.exit_code == code
    assert "Error" not in result.output
    assert "Try " not in result.output


def test_english_errors_are_those_of_click():
    result = CliRunner().invoke(main, ["--lang", "en", "scan", "--batch", "x"])
    assert "Error: Invalid value for '--batch': 'x' is not a valid integer range." in result.output
    assert result.exit_code == 2


def test_a_wrong_call_shows_how_it_is_called():
    assert "用法：main runs [选项]\n用 'main runs --help' 查看帮助。\n" in call("runs", "a").output


def test_without_a_command_there_is_help():
    assert "用法：" in call().output


def _text(node):
    """The message that an expression makes, `{}` for what is filled in; None if it is no text."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(v.value if isinstance(v, ast.Constant) else "{}" for v in node.values)
    return None


def _messages():
    """Every message, and every rule of an argument, in ROOMS; 7 for what is filled in."""
    for path in (path for room in ROOMS for path in (SOURCE / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                yield from _of_call(node.exc)


def _of_call(made):
    kind, filled = ast.unparse(made.func), {word.arg for word in made.keywords}
    texts = [_text(argument) for argument in made.args]
    rule = texts[1] if kind == "ArgumentError" and len(texts) > 1 else None
    if rule and not rule.startswith(IN_PARTS):
        yield rule.replace("{}", "7")
    if kind in WHOLE and texts and texts[0] and not texts[0].startswith(IN_PARTS):
        yield re.sub(r"\{(\w*)[^}]*\}", lambda p: _place(p[1], filled), texts[0])


def _place(name, filled):
    return "7" if not name or name in filled else option(name)


@pytest.mark.parametrize("allowed", NEARLY)
def test_every_message_of_a_command_has_a_phrase(allowed):
    zh, found = error_phrases("zh"), sorted(set(_messages()))
    lacking = [text for text in found if zh.known(text) is None]
    assert len(found) > 100
    assert len(lacking) <= allowed * len(found), lacking


def test_both_sides_have_the_same_places():
    for phrase, said in table("zh", ERRORS).items():
        places = [sorted(re.findall(r"\{(\w+)", text)) for text in (phrase, said)]
        assert places[0] == places[1], phrase
