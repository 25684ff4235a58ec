"""`attentropy serve`: look at scans and runs in a browser while they grow, or at a model."""

import os
import socket
from pathlib import Path
from typing import Any

import click

from attentropy.cli.failures import needs
from attentropy.cli.models.text import load, reading_of, reads
from attentropy.core.language.speaking import told

TEXTS = ("texts", "prompt", "target", "generate", "image")


@click.command()
@click.argument("what", metavar="[DIR|MODEL]", required=False)
@reads
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=8765, show_default=True, type=click.IntRange(0, 65535))
def command(what: str | None, host: str, port: int, **options: Any) -> None:
    """Serve a read-only local web page of the scans and runs below DIR, or of MODEL.

    Scans and runs are refreshed as they grow. MODEL, a transformers folder, a GGUF file or
    package.module:factory, stays in memory with one text, and the page shows any row of any head at
    once. With a text but no MODEL, this is the small model that comes with attentropy.
    """
    needs("attentropy serve", "serve", "uvicorn", "starlette")
    from attentropy.report.listening import serve
    from attentropy.report.server import is_loopback

    if is_model(what, given=[name for name in TEXTS if options[name]]):
        app, name = _model(what, host, options)
    else:
        app, name = _folder(what, host, options), what or "."
    if not is_loopback(host):
        click.echo(told(f"warning: {host} can be reached from other machines"), err=True)
    with _listen(host, port) as listener:
        place = f"http://{host}:{listener.getsockname()[1]}/"
        click.echo(told(f"Serving {name} at {place} (Ctrl-C stops)"))
        serve(app, listener)


def is_model(what: str | None, *, given: list[str]) -> bool:
    """Does the argument name a model, and not a folder of scans and runs?

    Args:
        what: the argument.
        given: options that say what a model reads.
    """
    from attentropy.scans.loading.sources import FACTORY

    if what is None:
        return bool(given)
    path = Path(what)
    if path.is_dir():
        return (path / "config.json").is_file()
    return path.suffix == ".gguf" or FACTORY.fullmatch(what) is not None or bool(given)


def _folder(what: str | None, host: str, options: dict[str, Any]) -> Any:
    from attentropy.report.server import application
    from attentropy.scans.errors import ScanError

    given = [name.removesuffix("s") for name in TEXTS if options[name]]
    if given:
        raise ScanError("{" + given[0] + "} is for a model, and {what} is not one", what=what)
    return application(Path(what or "."), host=host)


def _model(what: str | None, host: str, options: dict[str, Any]) -> tuple[Any, str]:
    from attentropy.cli.models.scan import threads
    from attentropy.report.live import live_application
    from attentropy.scans.texts.live import LiveText

    with threads(options["cores"]):
        source = load(what, options)
        text = LiveText(reading_of(source, options))
    return live_application(text, name=source.about.name, host=host), source.about.name


def _listen(host: str, port: int) -> socket.socket:
    """A socket on that address; bound here so that a taken port is an error like any other."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
        raise click.ClickException(f"cannot listen on {host}:{port}: {reason}") from error
