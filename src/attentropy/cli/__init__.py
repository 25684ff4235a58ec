"""The command line: parse, call, print. One command, one file in the folder of its group.

Commands are imported when they are used, and torch inside them, so that --help is immediate.
"""

import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Any, NamedTuple

import click

from attentropy._version import __version__
from attentropy.cli.examples import epilog
from attentropy.cli.failures import debug_option, in_language, one_sentence
from attentropy.cli.language import language_of, with_language
from attentropy.core.language.speaking import speaking

COMMANDS: dict[str, str] = {
    "scan": "From a model to a report: every head at several lengths.",
    "text": "Which words a head looks at in your text.",
    "compare": "Scans side by side: which heads changed, and how much.",
    "extend": "Make a model read longer texts: methods tried on text, the best exported.",
    "report": "The HTML report of a training run or of a scan.json.",
    "serve": "Scans and runs of a folder on a local web page, live.",
    "watch": "Follow a training run in the terminal.",
    "runs": "List recorded training runs.",
    "export": "Write every number of a run as CSV or Parquet.",
    "theory": "List and evaluate the closed forms.",
    "claims": "Check the statements of the source documents by running them.",
    "curves": "Write the figures of the theory, with their numbers.",
    "doctor": "Say which kernel runs on this machine, and why.",
    "bench": "Time attention with statistics against torch's attention without.",
    "lab": "Run an experiment: seeds, error bars, figures, conclusion.",
}  # name -> one line of help; the file of the name holds `command`


class Group(NamedTuple):
    """Commands under one heading, whose files stand in one folder."""

    heading: str
    folder: str
    names: tuple[str, ...]


GROUPS = (
    Group("Look at a model", "models", ("scan", "text", "compare", "extend", "report", "serve")),
    Group("Follow a training run", "training", ("runs", "watch", "export")),
    Group("Theory and experiments", "theory", ("theory", "claims", "curves", "lab")),
    Group("This machine", "machine", ("doctor", "bench")),
)
FOLDERS = {name: group.folder for group in GROUPS for name in group.names}


class _Commands(click.Group):
    """A group whose commands live in the modules `attentropy.cli.<folder>.<name>`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(
            f"attentropy.cli.{FOLDERS[cmd_name]}.{cmd_name}"
        ).command
        if command.epilog is None:  # the first time: what all commands have in common
            command.epilog = epilog(cmd_name)
            command.params.append(debug_option())
            with_language(command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        near = get_close_matches(args[0], COMMANDS, 1)
        if near and args[0] not in COMMANDS:
            ctx.fail(f"No such command {args[0]!r}. Did you mean {near[0]!r}?")
        return super().resolve_command(ctx, args)

    def main(self, args: Sequence[str] | None = None, *rest: Any, **options: Any) -> Any:
        given = sys.argv[1:] if args is None else list(args)
        with speaking(language_of(given)):
            return super().main(given, *rest, **options)

    def make_context(self, *args: Any, **options: Any) -> click.Context:
        with in_language():
            return super().make_context(*args, **options)

    def invoke(self, ctx: click.Context) -> Any:
        with in_language(), one_sentence(ctx):
            return super().invoke(ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for group in GROUPS:
            with formatter.section(group.heading):
                formatter.write_dl([(name, COMMANDS[name]) for name in group.names])


_LAST = """\b
Each command has its own --help, with examples.
Exit codes: 0 done, 1 failed, 2 called wrongly, 130 stopped with Ctrl-C."""


@with_language
@click.group(cls=_Commands, epilog=_LAST, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="attentropy")
def main() -> None:
    """Where is attention sharp, blurred or broken, and how to fix it."""
