"""attentropy doctor: which kernel serves here, and why."""

import json

import click


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print JSON only.")
def command(as_json: bool) -> None:
    """Say which kernel serves attention on this machine, and why."""
    from attentropy.kernels.doctor import doctor

    health = doctor()
    click.echo(json.dumps(health.as_dict(), indent=1) if as_json else str(health))
