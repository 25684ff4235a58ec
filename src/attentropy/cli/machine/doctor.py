"""attentropy doctor: which kernel runs here, and why."""

import json

import click

from attentropy.core.language.speaking import told


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print JSON only.")
def command(as_json: bool) -> None:
    """Say which kernel computes attention on this machine, and why."""
    from attentropy.kernels.doctor import doctor

    health = doctor()
    if as_json:
        click.echo(json.dumps(health.as_dict(), indent=1))
        return
    for line in str(health).splitlines():
        click.echo(line[: len(line) - len(line.lstrip())] + told(line.strip()))
