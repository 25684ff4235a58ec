"""`attentropy serve`: look at scans and runs in a browser while they grow."""

import os
import socket
from pathlib import Path

import click

from attentropy.cli.failures import needs


@click.command()
@click.argument("folder", metavar="[DIR]", default=".", type=click.Path(path_type=Path))
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=8765, show_default=True, type=click.IntRange(0, 65535))
def command(folder: Path, host: str, port: int) -> None:
    """List the scans and runs below DIR on a local web page, read-only, refreshed as they grow."""
    needs("attentropy serve", "serve", "uvicorn", "starlette")
    from attentropy.report.listening import serve
    from attentropy.report.server import application, is_loopback

    app = application(folder, host=host)
    if not is_loopback(host):
        click.echo(f"warning: {host} can be reached from other machines", err=True)
    with _listen(host, port) as listener:
        place = f"http://{host}:{listener.getsockname()[1]}/"
        click.echo(f"Serving {folder} at {place} (Ctrl-C stops)")
        serve(app, listener)


def _listen(host: str, port: int) -> socket.socket:
    """A socket on that address; bound here so that a taken port is an error like any other."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
        raise click.ClickException(f"cannot listen on {host}:{port}: {reason}") from error
