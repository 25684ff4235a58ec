"""Errors as one sentence, arguments by the names of their options."""

import click
import pytest

from attentropy.cli import failures
from attentropy.core.errors import ArgumentError
from attentropy.scans.errors import ScanError


@pytest.mark.parametrize(
    ("argument", "option"),
    [
        ("lengths", "--lengths"),
        ("model", "MODEL"),
        ("done", "--resume"),
        ("remote_code", "--trust-remote-code"),
        ("pickle", "--allow-pickle"),
        ("some_thing", "--some-thing"),
    ],
)
def test_arguments_of_python_are_options(argument, option):
    assert failures.option(argument) == option


def test_sentences():
    assert failures.sentence(ScanError("{batch} is\n  wrong")) == "--batch is wrong"
    assert failures.sentence(ArgumentError("x", "more\n", 1)) == "x must be more , got 1"
    missing = FileNotFoundError(2, "No such file or directory", "a.txt")
    assert failures.sentence(missing) == "No such file or directory: a.txt"
    assert failures.sentence(OSError("odd")) == "odd"


def test_files_that_cannot_be_written_are_refused(tmp_path):
    failures.check_file(None)
    failures.check_file(tmp_path / "new.csv")
    with pytest.raises(click.ClickException, match="it is a folder, not a file"):
        failures.check_file(tmp_path)
    with pytest.raises(click.ClickException, match="there is no folder"):
        failures.check_file(tmp_path / "no" / "x.csv")


def test_extras_that_are_missing_are_named():
    failures.needs("this", "extra", "json")
    with pytest.raises(
        click.ClickException, match=r"this needs absent1: pip install 'attentropy\[extra\]'"
    ):
        failures.needs("this", "extra", "absent1")
