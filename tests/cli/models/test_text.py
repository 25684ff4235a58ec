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


def test_generated_tokens_are_shown_and_told(call, tmp_path):
    result = call("--prompt", "To be, or not to ", "--generate", 6, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["tokens"], len(found["generated"])) == (23, 6)
    row = found["generated"][0]
    assert (row["step"], row["text"]) == (0, chr(row["token"]))
    assert len(row["entropy"]) == 5
    assert len(row["entropy"][0]) == 4
    assert {"varentropy", "top_probability", "surprise"} <= set(row)
    page = (tmp_path / "out" / "text.html").read_text()
    assert '"generated":{"start":17' in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--prompt", "a b", "--image", "a.png"), "--image and --prompt exclude each other"),
        (("--image", "a.png"), "--image: EmbeddedModel reads no pictures"),
        (("--prompt", "a b", "--target", "c"), "--target is for models with an encoder and a"),
        (("--prompt", "a b", "--generate", "0"), "--generate"),
    ],
)
def test_options_that_do_not_fit_are_refused(call, tmp_path, arguments, message):
    result = call(*arguments)
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert not (tmp_path / "out").exists()


def test_models_on_disk_read_a_picture_or_two_texts(call, tmp_path):
    from tests.models.test_generated import t5
    from tests.scans.texts.test_pictures import vit

    vit().save_pretrained(tmp_path / "vit")
    result = call("vit", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["tokens"], found["surprise"]) == (17, None)
    assert '"picture":{"png":' in (tmp_path / "out" / "text.html").read_text()
    t5().save_pretrained(tmp_path / "t5")  # a tokenizer of its own is made for it
    result = call("t5", "--prompt", "a b", "--generate", 3, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["layers"][-1] == "decoder.block.0.layer.1.EncDecAttention"
    assert 1 <= len(found["generated"]) <= 3
    page = (tmp_path / "out" / "text.html").read_text()
    assert '"sides":[{"name":"source"' in page
