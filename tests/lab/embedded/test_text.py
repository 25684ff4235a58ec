import pytest

from attentropy.core.errors import ArgumentError
from attentropy.lab.embedded import text as texts

TEXT = b"In the beginning was the Word, and the Word was with God. " * 400


def test_held_out_book_is_cut_from_the_middle():
    text = b"Ge1:1 a\nActs1:1 b\nActs1:2 c\nRom1:1 d\n"
    train, held_out = texts.split_text(text)
    assert (train, held_out) == (b"Ge1:1 a\nRom1:1 d\n", b"Acts1:1 b\nActs1:2 c\n")
    assert texts.split_text(b"x" * 100) == (b"x" * 95, b"x" * 5)


def test_file_corpus_knows_the_debian_text(tmp_path):
    path = tmp_path / "t.txt"
    path.write_bytes(b"Ge1:1 In the beginning God created\nActs1:1 b\nRom1:1 d\n" + TEXT)
    assert texts.file_corpus(path).source == texts.SOURCE
    path.write_bytes(TEXT)
    assert texts.file_corpus(path).source == "t.txt"
    path.write_bytes(b"short")
    with pytest.raises(ArgumentError, match="--text must be a file of at least 20000 bytes, got 5"):
        texts.file_corpus(path)


def test_fetching_without_apt_says_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(texts.TextUnavailableError, match=r"needs the program 'apt-get'.*--text"):
        texts.fetch_text(tmp_path / "debian")


def test_fetching_reports_what_apt_said(tmp_path, monkeypatch):
    script = tmp_path / "apt-get"
    script.write_text("#!/bin/sh\necho 'E: Unable to locate package' >&2\nexit 100\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(texts.TextUnavailableError, match="failed: E: Unable to locate package"):
        texts.fetch_text(tmp_path / "debian")


def test_the_debian_corpus_is_what_the_packages_hold(tmp_path, monkeypatch):
    verses = b"Ge1:1 a\nActs1:1 b\nRom1:1 c\n"
    asked = []

    def done(command, directory):
        asked.append(command[0].rsplit("/", 1)[-1])
        (directory / f"{texts.PACKAGES[0]}_1.deb").touch()
        (directory / f"{texts.PACKAGES[1]}_1.deb").touch()
        return verses

    monkeypatch.setattr(texts, "_run", done)
    corpus = texts.debian_corpus(tmp_path / "debian")
    assert asked == ["apt-get", "dpkg-deb", "dpkg-deb", "bible"]
    assert corpus.train == b"Ge1:1 a\nRom1:1 c\n"
    assert corpus.held_out == b"Acts1:1 b\n"
    assert (corpus.source, corpus.licence) == (texts.SOURCE, texts.LICENCE)
