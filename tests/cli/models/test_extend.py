"""attentropy extend as a user runs it: files, answer, exit codes, one sentence per mistake."""

import json

import pytest
from click.testing import CliRunner

import attentropy as at
from attentropy.cli import main
from attentropy.extensions.fits import temperatures
from attentropy.extensions.record import Record
from tests.extensions.small_models import grouped_llama

FAST = ("--windows", "3", "--finalists", "1", "--no-per-head")


@pytest.fixture
def call(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(temperatures, "STEPS", 1)

    def run(*arguments):
        return CliRunner().invoke(main, ["extend", *map(str, arguments)], catch_exceptions=True)

    return run


def failed(result, code=2) -> str:
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.stderr
    return result.stderr.strip().splitlines()[-1]


@pytest.fixture
def folder(tmp_path):
    """A llama without a tokenizer, and token ids for it."""
    import numpy as np

    grouped_llama().save_pretrained(tmp_path / "llama")
    np.save(tmp_path / "ids.npy", np.random.default_rng(0).integers(0, 97, 2000))
    return "llama", "--tokens", "ids.npy", "--to", "128"


def test_the_embedded_model_is_extended_and_its_call_works(call, tmp_path):
    done = call("--to", "512", *FAST, "--out", "out")
    assert done.exit_code == 0, done.output
    assert "At 512 tokens" in done.stdout
    assert "out/extend.json" in done.stdout
    record = Record.load(tmp_path / "out" / "extend.json")
    assert record.complete
    assert (tmp_path / "out" / "extend.png").stat().st_size > 1000
    if (tmp_path / "out" / "plan.json").exists():
        assert 'at.steer(model, at.Plan.load("out/plan.json"))' in done.stdout
        assert at.Plan.load(tmp_path / "out" / "plan.json").reference == 128


def test_json_is_all_that_stdout_holds_and_resume_measures_nothing_twice(call, folder, tmp_path):
    done = call(*folder, *FAST, "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert (found["complete"], found["trained"], found["to"]) == (True, 64, 128)
    names = {one["name"] for one in found["candidates"]}
    assert {"untouched", "truncated", "clipped positions, log n"} <= names
    assert {"linear x2", "YaRN x2"} <= {one["name"] for one in found["screened"]}
    assert {"loss", "above_truncation", "error", "passkeys", "digits", "helps"} <= set(
        found["candidates"][0]
    )
    before = (tmp_path / "attentropy-extend" / "extend.json").read_text()
    again = call(*folder, *FAST, "--json", "--resume")
    assert again.exit_code == 0, again.output
    assert (tmp_path / "attentropy-extend" / "extend.json").read_text() == before


def test_mistakes_are_told_before_the_work(call, folder, tmp_path):
    assert "to must be beyond the trained length 64, got 64" in failed(call(*folder[:-1], 64))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("")
    sentence = failed(call(*folder, "--export", "full"))
    assert sentence == "Error: --export full must be a new or empty folder"
    embedded = failed(call("--to", "512", "--export", "new"), 1)
    assert "only models of transformers are exported, not EmbeddedModel" in embedded
    assert "exclude each other" in failed(call(*folder, "--text", "x.txt"))
    assert not (tmp_path / "attentropy-extend").exists()
