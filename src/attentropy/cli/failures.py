"""Errors as one sentence on stderr, exit code 1, no traceback unless it is asked for."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

from attentropy.errors import AttentropyError


@contextmanager
def one_sentence(*, debug: bool) -> Iterator[None]:
    """Turn an expected failure inside the block into a click error; `debug` lets it through."""
    try:
        yield
    except click.ClickException:
        raise
    except (AttentropyError, OSError) as error:
        if debug:
            raise
        raise click.ClickException(sentence(error)) from error
    except KeyboardInterrupt:
        click.echo("stopped", err=True)
        sys.exit(130)


def sentence(error: BaseException) -> str:
    """The error in one line; an OSError as its reason and the file it is about."""
    if isinstance(error, OSError) and error.strerror:
        about = f": {error.filename}" if error.filename else ""
        return f"{error.strerror}{about}"
    return " ".join(str(error).split())
