"""The command line: parse, call, print. One command, one file of this folder.

Commands are imported when they are used, and torch inside them, so that --help is immediate.
"""

from collections.abc import Iterator
from difflib import get_close_matches
from importlib import import_module
from typing import Any

import click

from attentropy._version import __version__
from attentropy.cli.examples import epilog
from attentropy.cli.failures import debug_option, one_sentence

COMMANDS: dict[str, str] = {
    "scan": "From a model to a report: every head at several lengths.",
    "report": "The HTML report of a training run, or of a scan.json again.",
    "serve": "Scans and runs of a folder on a local web page, live.",
    "watch": "Follow a training run in the terminal.",
    "runs": "List recorded training runs.",
    "export": "Write every number of a run as CSV or Parquet.",
    "theory": "Look closed forms up, and evaluate them.",
    "claims": "Check the statements of the source documents by running them.",
    "curves": "Write the figures of the theory, with their numbers.",
    "doctor": "Say which kernel serves on this machine, and why.",
    "bench": "Time attention with statistics against torch's attention without.",
    "lab": "Run an experiment: seeds, error bars, figures, conclusion.",
}  # name -> one line of help; the file of the name holds `command`

GROUPS: dict[str, str] = {
    "Look at a model": "scan report serve",
    "Follow a training run": "runs watch export",
    "Theory and experiments": "theory claims curves lab",
    "This machine": "doctor bench",
}  # heading -> names; a command that is in none is listed under "More"


def grouped() -> Iterator[tuple[str, list[str]]]:
    """Headings with the commands under them; every command of COMMANDS exactly once."""
    placed = {name for names in GROUPS.values() for name in names.split()}
    for heading, names in GROUPS.items():
        yield heading, [name for name in names.split() if name in COMMANDS]
    yield "More", [name for name in COMMANDS if name not in placed]


class _Commands(click.Group):
    """A group whose commands live in the modules `attentropy.cli.<name>`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(f"attentropy.cli.{cmd_name}").command
        if command.epilog is None:  # the first time: what all commands have in common
            command.epilog = epilog(cmd_name)
            command.params.append(debug_option())
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        near = get_close_matches(args[0], COMMANDS, 1)
        if near and args[0] not in COMMANDS:
            ctx.fail(f"No such command {args[0]!r}. Did you mean {near[0]!r}?")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        with one_sentence(ctx):
            return super().invoke(ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for heading, names in grouped():
            if names:
                with formatter.section(heading):
                    formatter.write_dl([(name, COMMANDS[name]) for name in names])


_LAST = """\b
Each command has its own --help, with examples.
Exit codes: 0 done, 1 failed, 2 called wrongly, 130 stopped with Ctrl-C."""


@click.group(cls=_Commands, epilog=_LAST)
@click.version_option(__version__, prog_name="attentropy")
def main() -> None:
    """Where is attention sharp, blurred or broken, and how to fix it."""
