"""Errors as one sentence on stderr, no traceback unless `--debug` asks for it.

The exit code is 2 for a command that was called wrongly, and 1 for one that failed.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

import click

from attentropy.core.errors import ArgumentError, ArgumentTypeError, AttentropyError
from attentropy.core.language.speaking import spoken, told, told_error

_ASKED = "attentropy.debug"
_OURS = "attentropy: "


class CalledWrongly(click.ClickException):
    """The command cannot start with these arguments; exit code 2."""

    exit_code = 2


def debug_option() -> click.Option:
    """The option --debug, which every command gets."""
    return click.Option(
        ["--debug"],
        is_flag=True,
        expose_value=False,
        callback=lambda ctx, _, value: ctx.meta.update({_ASKED: value}),
        help="Show the traceback of an error.",
    )


class ErrorInLanguage(click.ClickException):
    """An error of click, or of ours, shown in the language in use.

    Args:
        error: in English.
    """

    def __init__(self, error: click.ClickException) -> None:
        super().__init__(told_error(error.format_message()))
        self.ctx: click.Context | None = getattr(error, "ctx", None)

    def show(self, file: IO[Any] | None = None) -> None:
        """Print how the command is called, as click does for wrong calls, and the message.

        Args:
            file: where to; stderr if not given.
        """
        if self.ctx is not None:
            hint = told_error(f"Try '{self.ctx.command_path} --help' for help.")
            click.echo(f"{self.ctx.get_usage()}\n{hint}\n", file=file, err=True)
        click.echo(told_error("Error: ") + self.message, file=file, err=True)


class WrongCallInLanguage(ErrorInLanguage):
    """The same for a command that was called wrongly; exit code 2."""

    exit_code = 2


@contextmanager
def in_language() -> Iterator[None]:
    """Show errors of click that are raised inside the block in the language in use."""
    try:
        yield
    except click.exceptions.NoArgsIsHelpError:  # shows the help, which is translated already
        raise
    except click.ClickException as error:
        if spoken() == "en" or isinstance(error, ErrorInLanguage):
            raise
        kind = WrongCallInLanguage if error.exit_code == 2 else ErrorInLanguage
        raise kind(error) from error


@contextmanager
def one_sentence(ctx: click.Context) -> Iterator[None]:
    """Turn an expected failure inside the block into a click error, and Ctrl-C into code 130.

    Args:
        ctx: of the running command.
    """
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _warn(warnings.showwarning)
            yield
    except BrokenPipeError:  # the reader has gone, which click knows how to end
        raise
    except (AttentropyError, OSError) as error:
        if ctx.meta.get(_ASKED):
            raise
        kind = CalledWrongly if names_an_argument(error) else click.ClickException
        raise kind(sentence(error)) from error
    except KeyboardInterrupt:
        click.echo(told("stopped"), err=True)
        ctx.exit(130)


def names_an_argument(error: BaseException) -> bool:
    """Whether the error is about an argument that the caller passed.

    Args:
        error: what was raised.

    >>> names_an_argument(ArgumentError("seeds", ">= 1", 0)), names_an_argument(OSError("full"))
    (True, False)
    """
    argued = isinstance(error, ArgumentError | ArgumentTypeError)
    return argued or bool(getattr(error, "arguments", ()))  # of a ScanError or NoSuchRun


def _warn(otherwise: Callable[..., None]) -> Callable[..., None]:
    """Warnings of attentropy itself as one line on stderr."""

    def show(message: Warning | str, *args: Any, **kwargs: Any) -> None:
        text = str(message)
        if text.startswith(_OURS):
            click.echo(told(f"Warning: {text.removeprefix(_OURS)}"), err=True)
        else:
            otherwise(message, *args, **kwargs)

    return show


OPTIONS = {
    "model": "MODEL",
    "done": "--resume",
    "pickle": "--allow-pickle",
    "remote_code": "--trust-remote-code",
    "download": "--allow-download",
}  # arguments of Python whose option has another name


def option(argument: str) -> str:
    """How the command line calls an argument of Python.

    Args:
        argument: the name in Python.

    >>> option("lengths"), option("remote_code")
    ('--lengths', '--trust-remote-code')
    """
    return OPTIONS.get(argument, f"--{argument.replace('_', '-')}")


def sentence(error: BaseException) -> str:
    """The error in one line, arguments by the names of their options.

    An OSError is its reason and the file it is about.

    Args:
        error: what was raised.
    """
    said = getattr(error, "said", None)
    if callable(said):  # a ScanError
        return " ".join(said(option).split())
    if isinstance(error, OSError) and error.strerror:
        about = f": {error.filename}" if error.filename else ""
        return f"{error.strerror}{about}"
    return " ".join(str(error).split())


def check_file(out: Path | None) -> None:
    """Refuse an --out that cannot be a file.

    Args:
        out: the option; None is not given.
    """
    if out is None:
        return
    if out.is_dir():
        raise CalledWrongly(f"cannot write --out {out}: it is a folder, not a file")
    if not out.parent.is_dir():
        raise CalledWrongly(f"cannot write --out {out}: there is no folder {out.parent}")


@contextmanager
def writing(path: Path | None) -> Iterator[None]:
    """Name the file in the message of an error that is raised while it is written.

    Args:
        path: of the file; None is stdout.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise click.ClickException(f"cannot write {path or 'to stdout'}: {reason}") from error


def needs(what: str, extra: str, *modules: str) -> None:
    """Refuse before any work is done if the modules of an extra are not installed.

    Args:
        what: the feature that needs the modules, for the message.
        extra: of attentropy that installs them.
        modules: names to look for.
    """
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        text = f"{what} needs {' and '.join(missing)}: pip install 'attentropy[{extra}]'"
        raise click.ClickException(text)
