"""Errors as one sentence, arguments by the names of their options."""

import warnings
from pathlib import Path

import click
import pytest

from attentropy.cli import COMMANDS, failures
from attentropy.cli.failures import check_file, needs, one_sentence, sentence, writing
from attentropy.core.errors import ArgumentError
from attentropy.scans.errors import ScanError
from tests.cli.test_cli import call


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


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_debug_once(name):
    assert call(name, "--help").output.count("--debug") == 1
    assert call(name, "--help").output.count("--debug") == 1, "and the second time"


def test_debug_shows_the_traceback(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").write_text("a file")
    done = call("curves", "--only", "entropy_length", "--out", "taken/below", "--debug")
    assert isinstance(done.exception, NotADirectoryError)


def test_ctrl_c_gives_the_usual_code(monkeypatch):
    def interrupt():
        raise KeyboardInterrupt

    monkeypatch.setattr("attentropy.kernels.doctor.doctor", interrupt)
    done = call("doctor")
    assert done.exit_code == 130
    assert "stopped" in done.output


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (FileNotFoundError(2, "No such file or directory", "a.txt"),
         "No such file or directory: a.txt"),
        (OSError(28, "No space left on device"), "No space left on device"),
        (OSError("no number"), "no number"),
        (ValueError("two\n   lines"), "two lines"),
    ],
)  # fmt: skip
def test_an_error_is_one_line(error, text):
    assert sentence(error) == text


def context(*, debug=False):
    made = click.Context(click.Command("any"))
    made.meta["attentropy.debug"] = debug
    return made


def test_expected_errors_become_sentences_and_others_do_not():
    with (
        pytest.raises(click.ClickException, match="^tau must be > 0, got 0$"),
        one_sentence(context()),
    ):
        raise ArgumentError("tau", "> 0", 0)
    with pytest.raises(ArgumentError), one_sentence(context(debug=True)):
        raise ArgumentError("tau", "> 0", 0)
    with pytest.raises(ZeroDivisionError), one_sentence(context()):
        _ = 1 / 0
    with pytest.raises(BrokenPipeError), one_sentence(context()):
        raise BrokenPipeError


def test_warnings_of_ours_are_lines_on_stderr_and_others_stay(capsys):
    with warnings.catch_warnings(record=True) as others:
        warnings.simplefilter("always")
        with one_sentence(context()):
            warnings.warn("attentropy: mind the gap", stacklevel=1)
            warnings.warn("of another library", stacklevel=1)
    assert capsys.readouterr().err == "Warning: mind the gap\n"
    assert [str(other.message) for other in others] == ["of another library"]


def test_a_file_to_write_is_checked_before_the_work(tmp_path):
    check_file(None)
    check_file(tmp_path / "new.html")
    with pytest.raises(click.ClickException, match="it is a folder, not a file"):
        check_file(tmp_path)
    with pytest.raises(click.ClickException, match="there is no folder"):
        check_file(tmp_path / "none" / "x.html")


def test_what_cannot_be_written_is_named():
    full = OSError(28, "No space left on device")
    text = "cannot write x.html: No space left on device"
    with pytest.raises(click.ClickException, match=text), writing(Path("x.html")):
        raise full
    with pytest.raises(click.ClickException, match="cannot write to stdout: gone"), writing(None):
        raise OSError("gone")
    with pytest.raises(BrokenPipeError), writing(None):
        raise BrokenPipeError


def test_what_an_extra_brings_is_asked_for():
    needs("this", "dev", "click", "rich")
    with pytest.raises(click.ClickException) as told:
        needs("this", "toys", "click", "no_such_toy", "nor_this")
    assert told.value.message == (
        "this needs no_such_toy and nor_this: pip install 'attentropy[toys]'"
    )
