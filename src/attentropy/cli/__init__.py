"""The command line: parse, call, print. One command, one file of this folder.

Commands are imported when they are used, and torch inside them, so that --help is immediate.
"""

from importlib import import_module

import click

from attentropy._version import __version__

COMMANDS: dict[str, str] = {
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


class _Commands(click.Group):
    """A group whose commands live in the modules `attentropy.cli.<name>`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(f"attentropy.cli.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=_Commands)
@click.version_option(__version__, prog_name="attentropy")
def main() -> None:
    """Where is attention sharp, blurred or broken, and how to fix it."""
