"""The command `python -m attentropy.lab.embedded`."""

import json

from attentropy.lab.embedded import __main__ as command
from attentropy.lab.embedded import text as texts
from attentropy.lab.embedded.model import load_model
from attentropy.lab.embedded.training import Trainer
from tests.lab.embedded.test_training import SMALL, TEXT, run


def test_command_trains_writes_and_does_not_train_again(tmp_path, capsys, monkeypatch):
    source = tmp_path / "source.txt"
    source.write_bytes(TEXT * 2)
    monkeypatch.setattr(command, "EVERY", 1)
    words = ["--out", str(tmp_path / "out"), "--steps", "2", "--text", str(source)]
    assert command.main(words) == 0
    written = tmp_path / "out" / "model.safetensors"
    first = written.read_bytes()
    load_model(written)
    monkeypatch.setattr(Trainer, "advance", lambda self: 1 / 0)
    assert command.main(words) == 0
    assert written.read_bytes() == first
    assert (tmp_path / "out" / "sample.txt").stat().st_size > 0


def test_command_says_one_sentence_on_errors(tmp_path, capsys):
    assert command.main(["--out", str(tmp_path), "--text", str(tmp_path / "missing.txt")]) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert "missing.txt" in said
    assert "Traceback" not in said


def test_notes_are_complete():
    trainer = run(Trainer(TEXT, SMALL), 2)
    corpus = texts.Corpus(TEXT, TEXT[:3000], "a source", "a licence")
    notes = command.notes(corpus, trainer)
    assert json.loads(json.dumps(notes))["recipe"]["steps"] == 20
    assert notes["losses"]["bigram"] > 0
    assert notes["source"] == "a source"
