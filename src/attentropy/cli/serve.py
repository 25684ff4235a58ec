"""`attentropy serve`: look at scans and runs in a browser while they grow."""

from pathlib import Path

import click

from attentropy.cli.failures import one_sentence


@click.command()
@click.argument("folder", metavar="[DIR]", default=".", type=click.Path(path_type=Path))
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=8765, show_default=True, type=click.IntRange(0, 65535))
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def command(folder: Path, host: str, port: int, debug: bool) -> None:
    """List the scans and runs below DIR on a local web page, read-only, refreshed as they grow."""
    with one_sentence(debug=debug):
        _serve(folder, host, port)


def _serve(folder: Path, host: str, port: int) -> None:
    try:
        import uvicorn
        from starlette.applications import Starlette as _  # noqa: F401
    except ImportError as error:
        message = "attentropy serve needs its extra: pip install 'attentropy[serve]'"
        raise click.ClickException(message) from error
    from attentropy.report.server import application, is_loopback

    app = application(folder, host=host)
    if not is_loopback(host):
        click.echo(f"warning: {host} can be reached from other machines", err=True)
    click.echo(f"Serving {folder} at http://{host}:{port}/ (Ctrl-C stops)")
    uvicorn.run(app, host=host, port=port, log_level="warning")
