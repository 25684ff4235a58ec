import json

import pytest
from click.testing import CliRunner

from attentropy.cli import main
from attentropy.cli.models.text import parse_heads
from attentropy.scans.errors import ScanError


@pytest.fixture
def call(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        return CliRunner().invoke(main, ["text", *map(str, arguments), "--out", "out"])

    return run


def test_the_embedded_model_reads_a_prompt(call, tmp_path):
    result = call("--prompt", "To be, or not to be", "--heads", "1.0,3.2", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["tokens"], found["left"], found["heads"]) == (19, 0, ["1.0", "3.2"])
    assert found["surprise"] > 0
    page = tmp_path / found["text"]
    assert page.name == "text.html"
    assert page.stat().st_size == found["bytes"] < 2_000_000


def test_a_file_is_read_up_to_a_length(call, tmp_path):
    (tmp_path / "a.txt").write_text("In the beginning. " * 9)
    result = call("scans.tiny:make", "--text", "a.txt", "--length", 20)
    assert result.exit_code == 0, result.output
    assert "20 tokens, weights of 8 heads" in result.stdout
    assert "Text: out" in result.stdout
    assert "of 162" not in result.stdout
    assert (tmp_path / "out" / "text.html").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--prompt", "a b", "--text", "a.txt"), "--text and --prompt exclude each other"),
        (("--prompt", " "), "--prompt is empty"),
        (("--text", "absent.txt"), "--text absent.txt does not exist"),
        (("--prompt", "a b", "--heads", "1"), "--heads must be layers and heads such as"),
        (("--prompt", "a b", "--heads", "9.0"), "heads must be of a model of 5 layers, got 9.0"),
        (("--prompt", "x"), "must be 2 tokens or more, got 1"),
    ],
)
def test_mistakes_are_one_sentence_and_leave_nothing(call, tmp_path, arguments, message):
    result = call(*arguments)
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "out").exists()


def test_heads_are_pairs():
    assert parse_heads(" 3.5,12.0 ") == [(3, 5), (12, 0)]
    with pytest.raises(ScanError, match="heads must be layers and heads"):
        parse_heads("3.x")
